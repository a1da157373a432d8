package doctor

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// One rule for each defect, unless a comment says why there are more.
var defects = []defect{
	// Networks that users apply.
	{
		name: "a pool gives the gateway to pods",
		plant: func(p *planter) {
			p.macvlan(`"ipam": {"type": "whereabouts", "range": "10.70.0.0/24", "gateway": "10.70.0.1", "allow_gateway": true}`)
		},
		found: map[string]string{"IPAM-GW": "the gateway 10.70.0.1 is an address of the range"},
	},
	{
		name: "the gateway is in another subnet",
		plant: func(p *planter) {
			p.macvlan(`"ipam": {"type": "whereabouts", "range": "10.70.0.0/24", "gateway": "10.71.0.1"}`)
		},
		found: map[string]string{"IPAM-GWNET": "10.71.0.1 is not in 10.70.0.0/24"},
	},
	{
		name: "each node has a subnet, and the gateway no routes",
		plant: func(p *planter) {
			p.macvlan(`"ipam": {"type": "whereabouts", "range": "10.70.${node}.0/24", "gateway": "10.70.${node}.1"}`)
		},
		found: map[string]string{"IPAM-GWROUTE": "but no routes"},
	},
	{
		name:  "ranges overlap",
		plant: func(p *planter) { p.macvlan(`"ipam": {"type": "whereabouts", "range": "10.60.0.0/16"}`) },
		found: map[string]string{"IPAM-OVERLAP": "overlap with"},
	},
	{
		name:  "a range is in the network of services",
		plant: func(p *planter) { p.macvlan(`"ipam": {"type": "whereabouts", "range": "10.96.5.0/24"}`) },
		found: map[string]string{"IPAM-NETS": "the network of the cluster's services"},
	},
	{
		name: "all of a range is excluded",
		plant: func(p *planter) {
			p.macvlan(`"ipam": {"type": "whereabouts", "range": "10.70.0.0/30", "exclude": ["10.70.0.0/30"]}`)
		},
		found: map[string]string{"IPAM-EMPTY": "all of 10.70.0.0/30 is excluded"},
	},
	{
		name: "ranges of rails overlap",
		plant: func(p *planter) {
			p.nad("planted", `{"cniVersion": "1.0.0", "name": "planted", "type": "host-device", "rail": "auto", "ipam": {"type": "whereabouts", "range": "10.70.${rail}.0/16"}}`, "rdma/planted")
		},
		found: map[string]string{"IPAM-RAILS": "overlap"},
	},
	{
		name:  "a key is misspelled",
		plant: func(p *planter) { p.macvlan(`"mtuu": 9000`) },
		found: map[string]string{"CNI-KEY": `"mtuu" is unknown`},
	},
	{
		name:  "a value is misspelled",
		plant: func(p *planter) { p.macvlan(`"mode": "bride"`) },
		found: map[string]string{"CNI-NAD": "bride"},
	},
	{
		name: "the plugins do not speak the version",
		plant: func(p *planter) {
			p.nad("planted", `{"cniVersion": "2.0.0", "name": "planted", "type": "macvlan", "master": "ens2f0"}`, "")
		},
		found: map[string]string{"CNI-VERSION": `cniVersion is "2.0.0"`},
	},
	{
		name: "rdma is the first plugin",
		plant: func(p *planter) {
			p.nad("planted", `{"cniVersion": "1.0.0", "name": "planted", "plugins": [{"type": "rdma"}, {"type": "tuning"}]}`, "")
		},
		found: map[string]string{"CNI-CHAIN": "rdma is the first plugin"},
	},
	{
		name: "a network names a NIC that no node has",
		plant: func(p *planter) {
			p.nad("planted", `{"cniVersion": "1.0.0", "name": "planted", "type": "host-device", "device": "ENS18np0"}`, "")
		},
		found: map[string]string{"CNI-NIC": "no NIC is called ENS18np0; there is ens18np0"},
	},
	{
		name: "two networks lend one NIC",
		plant: func(p *planter) {
			p.nad("planted", `{"cniVersion": "1.0.0", "name": "planted", "type": "host-device", "device": "ens18np0"}`, "")
		},
		found: map[string]string{"CNI-DEVICE": "ens18np0"},
	},
	{
		name:  "the macvlan's MTU is above its master's",
		plant: func(p *planter) { p.macvlan(`"mtu": 9216`) },
		found: map[string]string{"CNI-MTU": "its mtu is 9216, but the MTU of ens2f0 is 9000"},
	},

	// Files of a node.
	{
		name:  "the node file has an unknown key",
		plant: func(p *planter) { p.nodeFile("alow: [uplink]") },
		// The rails and pools of such a file do not count.
		found: map[string]string{"NODE-FILE": "alow", "DP-SELECT": "alow"},
	},
	{
		name:  "a device pool selects nothing",
		plant: func(p *planter) { p.nodeFile(emptyPool) },
		// With a pool at hand the resources of networks can be judged: that of the example is none.
		found: map[string]string{"DP-SELECT": "rdma/hca_foreign", "CNI-RESOURCE": "no pool has the resource rdma/hca_shared_devices_a"},
	},
	{
		name:  "another device plugin serves the resource",
		plant: func(p *planter) { p.nodeFile(emptyPool); p.foreignPlugin() },
		// As above: no NIC here has RDMA, so the pool is empty.
		found: map[string]string{"DP-DUP": "rdma/hca_foreign", "DP-SELECT": "rdma/hca_foreign", "CNI-RESOURCE": "hca_shared_devices_a"},
	},
	{
		name:  "logins may lock little memory",
		plant: func(p *planter) { p.file(0, "/etc/security/limits.d/90-hpc.conf", "* hard memlock 64\n") },
		found: map[string]string{"HOST-LIMITSCONF": "64 KiB"}, onNode: map[string]string{"HOST-LIMITSCONF": "64 KiB"},
	},
	{
		name: "the node filters reverse paths strictly",
		plant: func(p *planter) {
			p.onHost(1, "echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter", "echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter")
		},
		found: map[string]string{"HOST-RPFILTER": "node-2"},
	},
	{
		name: "another configuration is before that of Multus",
		plant: func(p *planter) {
			p.file(0, "/etc/cni/net.d/00-aaa.conflist", `{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge"}]}`)
		},
		found: map[string]string{"CNI-PRIMARY": "00-aaa.conflist"},
	},
	{
		name: "Multus is removed",
		plant: func(p *planter) {
			p.onHost(0, "mv /opt/cni/bin/multus /opt/cni/multus", "mv /opt/cni/multus /opt/cni/bin/multus")
		},
		found: map[string]string{"CNI-MULTUS": "no Multus"},
	},
	{
		name: "a plugin is replaced",
		plant: func(p *planter) {
			p.stopAgent()
			p.onHost(0, "mv /opt/cni/bin/macvlan /opt/cni/ours; cp /opt/cni/bin/bridge /opt/cni/bin/macvlan", "mv /opt/cni/ours /opt/cni/bin/macvlan")
		},
		// The agent would install its own again, so it must not run.
		found:  map[string]string{"CLUSTER-SILENT": "node-1"},
		onNode: map[string]string{"AGENT-DOWN": "does not run", "CNI-BINARY": "it is another program"},
	},
	{
		name:   "rail-agent does not run",
		plant:  func(p *planter) { p.stopAgent() },
		found:  map[string]string{"CLUSTER-SILENT": "node-1"},
		onNode: map[string]string{"AGENT-DOWN": "does not run"},
	},
	{
		name:  "a GPU without the label of Node Feature Discovery",
		plant: func(p *planter) { p.gpu() },
		found: map[string]string{"K8S-NFD": "pci-10de.present"},
	},

	// The ledger and the pools.
	{
		name: "a record is damaged",
		plant: func(p *planter) {
			p.edit(p.recordFile("roce-1", "net1"), func(text string) string { return text[:len(text)/2] })
		},
		// Nobody knows where the NIC is, which a network names.
		found: map[string]string{"LEDGER-UNREADABLE": "net1", "CNI-NIC": "no NIC is called ens16np0"},
	},
	{
		name:  "the record of a pod's NIC is deleted",
		plant: func(p *planter) { p.edit(p.recordFile("roce-1", "net1"), nil) },
		found: map[string]string{"CNI-NIC": "no NIC is called ens16np0"},
	},
	{
		name:   "a pod died without DEL and without an agent",
		plant:  func(p *planter) { p.stopAgent(); p.dead() },
		found:  map[string]string{"CLUSTER-SILENT": "node-1"},
		onNode: map[string]string{"AGENT-DOWN": "does not run", "LEDGER-ORPHAN": "default/dies"},
	},
	{
		name:  "somebody deletes a pod's macvlan",
		plant: func(p *planter) { p.guest(pod{}); p.inPod("guest", "ip link delete net2", "") },
		found: map[string]string{"LEDGER-LOST": "default/guest"},
	},
	{
		name: "an ADD has not ended for an hour",
		plant: func(p *planter) {
			p.guest(pod{})
			p.edit(p.recordFile("guest", "net1"), func(text string) string { return longLending(p.t, text) })
		},
		found: map[string]string{"LEDGER-LENDING": "default/guest"},
	},
	{
		name:  "an address is of a pod that is gone",
		plant: func(p *planter) { p.lease() },
		found: map[string]string{"IPAM-LEASE": "10.60.0.200 belongs to default/gone"},
	},

	// Interfaces of pods.
	{
		name: "a cable is out",
		plant: func(p *planter) {
			p.undo(func(ctx context.Context) error { return p.Node(1).SetCable(ctx, 2, true) })
			p.must(p.Node(1).SetCable(p.t.Context(), 2, false))
		},
		found: map[string]string{"POD-DOWN": "pod default/train-2: net3 has no carrier"},
	},
	{
		name:  "a pod sets its rail down",
		plant: func(p *planter) { p.inPod("train-1", "ip link set net1 down", "ip link set net1 up") },
		found: map[string]string{"POD-DOWN": "pod default/train-1: net1 is set down"},
	},
	{
		name:  "the NIC below macvlans is set down",
		plant: func(p *planter) { p.onHost(0, "ip link set ens2f0 down", "ip link set ens2f0 up") },
		found: map[string]string{"POD-DOWN": "pod default/roce-1: net4"},
	},
	{
		name:  "a pod changes the MTU of a rail",
		plant: func(p *planter) { p.inPod("train-2", "ip link set net2 mtu 1500", "ip link set net2 mtu 9000") },
		// The NIC differs from the pod's other rails, from the node's others, and from its rail's on
		// the other node.
		found: map[string]string{"POD-MTU": "default/train-2", "NIC-MTU": "ens11np0", "CLUSTER-MTU": "rail 1"},
	},
	{
		name: "two pods have one address",
		plant: func(p *planter) {
			p.inPod("train-2", "ip address add 10.60.3.77/24 dev net4", "ip address delete 10.60.3.77/24 dev net4")
			p.inPod("train-1", "ip address add 10.60.3.77/24 dev net4", "ip address delete 10.60.3.77/24 dev net4")
		},
		found: map[string]string{"IPAM-DUP": "address 10.60.3.77"},
	},
	{
		name: "two rails are exchanged",
		plant: func(p *planter) {
			_, first := p.record("train-2", "net1")
			_, second := p.record("train-2", "net2")
			move := func(from, to string) string { return "ip address delete " + from + "; ip address add " + to + "; " }
			a, b := first.Addresses[0], second.Addresses[0]
			p.inPod("train-2", move(a+" dev net1", b+" dev net1")+move(b+" dev net2", a+" dev net2"), move(b+" dev net1", a+" dev net1")+move(a+" dev net2", b+" dev net2"))
		},
		found: map[string]string{"RAIL-SWAP": "which is the subnet of rail 1"},
	},
	{
		name: "two rails of a pod are in one subnet",
		plant: func(p *planter) {
			p.inPod("train-1", "ip address add 10.60.0.77/24 dev net2", "ip address delete 10.60.0.77/24 dev net2")
		},
		found: map[string]string{"RAIL-ARPFLUX": "2 rails are in 10.60.0.0/24"},
	},
	{
		name: "a controller changes the annotation of networks",
		plant: func(p *planter) {
			set := func(ctx context.Context, value string) error {
				_, err := p.Kubectl(ctx, "annotate", "--overwrite", "pod", "train-1", statusKey+"="+value)
				return err
			}
			was, err := p.Kubectl(p.t.Context(), "get", "pod", "train-1", "-o", `jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`)
			p.must(err)
			p.undo(func(ctx context.Context) error { return set(ctx, was) })
			p.must(set(p.t.Context(), strings.Replace(was, `"10.60.2.`, `"10.60.9.`, 1)))
		},
		found: map[string]string{"K8S-DEVINFO": "net3 with 10.60.9."},
	},

	{
		name: "a pod asks for a network by the key network",
		plant: func(p *planter) {
			annotate := func(ctx context.Context, change string) error { // the agents have no networks
				_, err := p.Kubectl(ctx, "-n", agents, "annotate", "pod", "--selector", agentSelector, strings.TrimSuffix(statusKey, "-status")+change)
				return err
			}
			p.undo(func(ctx context.Context) error { return annotate(ctx, "-") })
			p.must(annotate(p.t.Context(), "=roce-net1"))
		},
		found: map[string]string{"CNI-ANNOTATION": "it has the annotation k8s.v1.cni.cncf.io/network instead"},
	},

	// Containers.
	{
		name:  "NCCL begins its jobs by a rail",
		plant: func(p *planter) { p.guest(pod{env: map[string]string{"NCCL_SOCKET_IFNAME": "net"}}) },
		found: map[string]string{"POD-SOCKET": "NCCL_SOCKET_IFNAME=net"},
	},
	{
		name:  "NCCL is told to use a device that the pod has not",
		plant: func(p *planter) { p.guest(pod{env: map[string]string{"NCCL_IB_HCA": "mlx5_7"}}) },
		found: map[string]string{"POD-HCA": "no device mlx5_7"},
	},
	{
		name:  "a container may lock little memory",
		plant: func(p *planter) { p.guest(pod{}); p.verbs(0, 64<<10) },
		found: map[string]string{"POD-MEMLOCK": "may lock 64 KiB"},
	},
	{
		name: "IPC_LOCK of a user that is not root",
		plant: func(p *planter) {
			p.guest(pod{security: map[string]any{"runAsUser": 1000, "runAsGroup": 1000, "capabilities": map[string]any{"add": []string{"IPC_LOCK"}}}})
			p.verbs(1000, 8<<20)
		},
		found: map[string]string{"POD-CAPS": "runs as user 1000"},
	},
}

const statusKey = "k8s.v1.cni.cncf.io/network-status"

// longLending returns a record as that of an ADD that began an hour ago.
func longLending(t *testing.T, text string) string {
	t.Helper()
	var record map[string]any
	if err := json.Unmarshal([]byte(text), &record); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
	record["phase"], record["created"], record["updated"] = "lending", then, then
	changed, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	return string(changed)
}
