package multus

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// The two forms of Multus: thin is a plugin that calls others, thick a daemon
// that a small plugin asks.
const (
	thin  = "thin"
	thick = "thick"
)

func TestThinMultus(t *testing.T)  { behindMultus(t, thin) }
func TestThickMultus(t *testing.T) { behindMultus(t, thick) }

// lab is a cluster of two nodes, whose NICs of the same name are cabled
// together, with the examples' NADs and pods.
type lab struct {
	nodes  [2]*node
	before [2]string // the nodes' networks
	pods   []examples.Pod
}

func behindMultus(t *testing.T, mode string) {
	for file, path := range map[string]string{"roce-nads.yaml": networks, "macvlan-nad.yaml": networks, "roce-pods.yaml": pods} {
		for _, text := range documents(t, file) {
			object(t, path, nameOf(t, text), text)
		}
	}
	l := &lab{nodes: newNodes(t, mode)}
	for i, n := range l.nodes {
		l.before[i] = n.State()
	}
	var err error
	if l.pods, err = examples.Pods("roce-pods.yaml"); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct {
		name string
		run  func(*testing.T, *lab)
	}{
		{"two pods get eight rails each and give them back", podsGetTheirRails},
		{"a failed fifth network leaves nothing", failedAddLeavesNothing},
		{"all that Multus injects arrives", injectedKeysArrive},
		{"one network serves all rails", oneNetworkServesAllRails},
		{"what Multus forgot the next ADD finds", forgottenPodIsSwept},
		{"each node hands out of its slice", slices},
		{"DEL takes the network as it was at ADD", delFromTheCache},
		{"a rail's own default route is a gateway in network-status", gatewaysOfRails},
	} {
		// In make test each runs behind one of the two.
		if chosen := (need.Seed()+uint64(i))%2 == 0; !need.Full() && chosen != (mode == thin) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			test.run(t, l)
			for i, n := range l.nodes {
				if d := n.Settled(l.before[i]); d != "" {
					t.Errorf("%s is not as it was:\n%s", n.name, d)
				}
				for _, r := range n.records() {
					t.Errorf("a record is left on %s: %s, phase %s", n.name, r.Holder(), r.Phase)
				}
			}
			wantHeld(t)
		})
	}
}

// nameOf returns the name of an object in an example file.
func nameOf(t *testing.T, document []byte) string {
	t.Helper()
	for line := range strings.Lines(string(document)) {
		if name, ok := strings.CutPrefix(line, "  name: "); ok {
			return strings.TrimSpace(name)
		}
	}
	t.Fatalf("an object without a name:\n%s", document)
	return ""
}

func podsGetTheirRails(t *testing.T, l *lab) {
	var boxes [2]*sandbox
	var together sync.WaitGroup
	for i, n := range l.nodes {
		boxes[i] = n.sandbox(t, l.pods[i].Name)
	}
	var errs [2]error
	began := time.Now()
	for i, s := range boxes {
		together.Go(func() { errs[i] = s.add() })
	}
	together.Wait()
	t.Logf("both ADDs took %v", time.Since(began).Round(time.Millisecond))
	var want []string
	for i, s := range boxes {
		if errs[i] != nil {
			t.Fatalf("ADD of %s: %v", s.pod, errs[i])
		}
		for k := range l.pods[i].NADs {
			want = append(want, fmt.Sprintf("172.31.%d.0/24 default/%s net%d", k+1, s.pod, k+1))
		}
	}
	wantHeld(t, want...)

	given := map[string]bool{}
	for i, s := range boxes {
		status := statusOf(t, s.pod)
		if len(status) != 9 || !status[0].Default || status[0].Interface != "eth0" {
			t.Fatalf("network-status of %s: %+v", s.pod, status)
		}
		for k, st := range status[1:] {
			l, err := link.ByName(s.netns.Netns, fmt.Sprintf("net%d", k+1))
			if err != nil {
				t.Fatal(err)
			}
			if st.Name != "default/"+nadName(k) || st.Interface != l.Name || st.Mac != l.MAC.String() || len(st.IPs) != 1 {
				t.Errorf("network-status of %s, %s (%s): %+v", s.pod, l.Name, l.MAC, st)
				continue
			}
			// The gateway, .1, is never assigned.
			if ip := st.IPs[0]; !strings.HasPrefix(ip, fmt.Sprintf("172.31.%d.", k+1)) || strings.HasSuffix(ip, ".1") || given[ip] {
				t.Errorf("%s of %s has %s", l.Name, s.pod, ip)
			} else if out := s.netns.IP("-o", "addr", "show", "dev", l.Name); !strings.Contains(out, " "+ip+"/24 ") {
				t.Errorf("%s of %s has not the address %s that Multus tells:\n%s", l.Name, s.pod, ip, out)
			} else {
				given[ip] = true
			}
			if l.MTU != 9000 || !l.IsUp() {
				t.Errorf("%s of %s: MTU %d, up: %v", l.Name, s.pod, l.MTU, l.IsUp())
			}
		}
		if records := l.nodes[i].records(); len(records) != 8 {
			t.Errorf("%s has %d records", s.name, len(records))
		}
		for _, r := range s.records() {
			if r.Pod.String() != "default/"+s.pod || r.Pod.UID == "" {
				t.Errorf("a record says that its pod is %+v", r.Pod)
			}
		}
	}
	other := statusOf(t, boxes[1].pod)
	for k := range 8 {
		boxes[0].netns.Exec("ping", "-c1", "-W5", "-I", fmt.Sprintf("net%d", k+1), other[k+1].IPs[0])
	}
	// Multus has no CHECK for networks of pods, only for those in its own
	// file; it must not fail for ours.
	for _, s := range boxes {
		if err := s.cni.CheckNetworkList(t.Context(), s.list, s.conf); err != nil {
			t.Errorf("CHECK of %s: %v", s.pod, err)
		}
	}
	for range 2 { // DEL may be repeated
		began := time.Now()
		for i, s := range boxes {
			together.Go(func() { errs[i] = s.del() })
		}
		together.Wait()
		t.Logf("both DELs took %v", time.Since(began).Round(time.Millisecond))
		for i, s := range boxes {
			if errs[i] != nil {
				t.Errorf("DEL of %s: %v", s.pod, errs[i])
			}
		}
		wantHeld(t)
	}
}

// nadName returns the name of the k-th NAD.
func nadName(k int) string { return fmt.Sprintf("roce-net-%d", k+1) }

func failedAddLeavesNothing(t *testing.T, l *lab) {
	n := l.nodes[0]
	simplePod(t, "holder", nadName(4))
	holder := n.sandbox(t, "holder")
	holder.mustAdd()
	held := n.State()

	s := n.sandbox(t, l.pods[0].Name)
	err := s.add()
	if err == nil {
		t.Fatal("two pods got one NIC")
	}
	for _, part := range []string{rails(t)[4], "default/holder"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %s: %v", part, err)
		}
	}
	// Multus has called DEL by now; the runtime calls it again.
	check := func() {
		t.Helper()
		if d := n.Settled(held); d != "" {
			t.Errorf("a failed ADD left this on the node:\n%s", d)
		}
		if r := n.records(); len(r) != 1 {
			t.Errorf("%d records, not that of the holder alone", len(r))
		}
		wantHeld(t, "172.31.5.0/24 default/holder net1")
	}
	check()
	s.mustDel()
	check()
	holder.mustDel()
}

// stdin returns Multus' input for the plugin of an interface: the record keeps
// it for the release of the addresses.
func (s *sandbox) stdin(ifName string) map[string]any {
	s.t.Helper()
	for _, r := range s.records() {
		if r.ContainerID == s.id && r.IfName == ifName {
			var got map[string]any
			if err := json.Unmarshal(r.IPAM.Config, &got); err != nil {
				s.t.Fatal(err)
			}
			return got
		}
	}
	s.t.Fatalf("no record of %s", ifName)
	return nil
}

func injectedKeysArrive(t *testing.T, l *lab) {
	const (
		sharedResource, ownResource = "rdma/hca_shared_devices_a", "rdma/hca_gpu"
		device                      = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:00.0","rdma-device":"mlx5_0"}}`
	)
	n := l.nodes[0]
	nad(t, "everything", ownResource, `{
		"cniVersion": "1.1.0", "name": "everything", "type": "macvlan", "master": "`+sharedNIC+`", "mtu": 4200,
		"capabilities": {"mac": true, "ips": true, "deviceID": true, "CNIDeviceInfoFile": true},
		"ipam": {"type": "whereabouts", "range": "10.61.0.0/24"}
	}`)
	nad(t, "by-name", sharedResource, `{
		"cniVersion": "1.1.0", "name": "by-name", "type": "host-device", "device": "`+rails(t)[4]+`",
		"ipam": {"type": "whereabouts", "range": "172.31.5.0/24", "gateway": "172.31.5.1"}
	}`)
	simplePod(t, "asking", `[
		{"name": "roce-net-1"},
		{"name": "rdma-net-ipam"},
		{"name": "everything", "interface": "rail0", "mac": "02:00:00:00:61:77", "ips": ["10.61.0.77/24"], "cni-args": {"rack": "b12"}},
		{"name": "by-name"}
	]`)
	s := n.sandbox(t, "asking")
	// The kubelet's file about its device plugins, which Multus reads if there
	// is no socket. A shared device plugin counts its devices; the other one
	// also wrote the device's description.
	uid := s.conf.Args[4][1]
	n.writeJSON("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", map[string]any{"Data": map[string]any{
		"PodDeviceEntries": []any{
			map[string]any{"PodUID": uid, "ResourceName": sharedResource, "DeviceIDs": map[string]any{"-1": []string{"0", "1"}}},
			map[string]any{"PodUID": uid, "ResourceName": ownResource, "DeviceIDs": map[string]any{"-1": []string{"0000:3b:00.0"}}},
		},
	}})
	n.write("/var/run/k8s.cni.cncf.io/devinfo/dp/rdma-hca_gpu-0000:3b:00.0-device.json", device)
	s.mustAdd()

	// Shape A: the user's configuration.
	roce, err := examples.Networks("roce-nads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var wrote map[string]any
	if err := json.Unmarshal(roce[0].Config, &wrote); err != nil {
		t.Fatal(err)
	}
	if got := s.stdin("net1"); !reflect.DeepEqual(got, wrote) {
		t.Errorf("the plugin got %v of a NAD that says %v", got, wrote)
	}
	// Shape B: device IDs that are not the plugin's, and must not precede the
	// NIC's name.
	for ifName, id := range map[string]string{"net2": "0", "net4": "1"} {
		if got := s.stdin(ifName); got["deviceID"] != id || got["pciBusID"] != id || got["runtimeConfig"] != nil {
			t.Errorf("the plugin got %v", got)
		}
	}
	// Shape C: all of runtimeConfig, beside both ids.
	got := s.stdin("rail0")
	runtime, _ := got["runtimeConfig"].(map[string]any)
	file, _ := runtime["CNIDeviceInfoFile"].(string)
	if got["pciBusID"] != "0000:3b:00.0" || runtime["deviceID"] != "0000:3b:00.0" || runtime["mac"] != "02:00:00:00:61:77" || file == "" ||
		!reflect.DeepEqual(runtime["ips"], []any{"10.61.0.77/24"}) || !reflect.DeepEqual(got["args"], map[string]any{"cni": map[string]any{"rack": "b12"}}) {
		t.Errorf("the plugin got %v", got)
	}

	status := statusOf(t, "asking")
	if len(status) != 5 {
		t.Fatalf("network-status: %+v", status)
	}
	// From result version 1.1.0 on, the standard has the MTU.
	want := nadv1.NetworkStatus{Name: "default/everything", Interface: "rail0", Mac: "02:00:00:00:61:77", IPs: []string{"10.61.0.77"}, Mtu: 4200}
	if err := json.Unmarshal([]byte(device), &want.DeviceInfo); err != nil {
		t.Fatal(err)
	}
	if got := status[3]; !reflect.DeepEqual(got.DeviceInfo, want.DeviceInfo) {
		t.Errorf("device-info: %+v, want %+v", got.DeviceInfo, want.DeviceInfo)
	} else if want.DeviceInfo, want.Gateway = got.DeviceInfo, got.Gateway; !reflect.DeepEqual(got, want) {
		t.Errorf("network-status: %+v, want %+v", got, want)
	}
	if got := status[2]; got.Interface != "net2" || !reflect.DeepEqual(got.IPs, []string{"192.168.111.1"}) || got.DeviceInfo != nil {
		t.Errorf("network-status: %+v", got)
	}
	if got := status[4]; got.Interface != "net4" || got.Mtu != 9000 || !reflect.DeepEqual(got.IPs, []string{"172.31.5.2"}) {
		t.Errorf("network-status: %+v", got)
	}
	wantHeld(t, "172.31.1.0/24 default/asking net1", "172.31.5.0/24 default/asking net4", "192.168.111.0/24 default/asking net2", "10.61.0.0/24 default/asking rail0")
	s.mustDel()
	s.mustDel()
	if _, err := os.Stat(n.file(strings.TrimPrefix(file, "/var"))); !os.IsNotExist(err) {
		t.Errorf("device information is left: %v", err)
	}
}

// forgottenPodIsSwept: a pod is deleted while its node is down, and Multus'
// record of it is lost.
func forgottenPodIsSwept(t *testing.T, l *lab) {
	n := l.nodes[0]
	simplePod(t, "forgotten", nadName(0)+","+nadName(1)+",rdma-net-ipam")
	n.write("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", "{}")
	s := n.sandbox(t, "forgotten")
	s.mustAdd()
	holders := []string{"172.31.1.0/24 default/forgotten net1", "172.31.2.0/24 default/forgotten net2", "192.168.111.0/24 default/forgotten net3"}
	wantHeld(t, holders...)

	if err := os.Remove(n.file("/var/lib/cni/multus/" + s.id)); err != nil {
		t.Fatal("Multus' cache:", err)
	}
	deleteObject(t, pods+"/forgotten")
	for _, name := range []string{"net1", "net2"} {
		// The kernel does so with a NIC of hardware when the pod's namespace
		// ends; a veth would be destroyed.
		s.netns.IP("link", "set", name, "down")
		s.netns.IP("link", "set", name, "netns", n.Name)
	}
	s.ended()
	s.mustDel() // Multus reports success …
	wantHeld(t, holders...)
	for _, name := range []string{"net1", "net2"} { // … without a call of the plugins
		if _, err := link.ByName(n.Netns.Netns, name); err != nil {
			t.Error("it was to be still under the pod's name:", err)
		}
	}

	simplePod(t, "next", nadName(1))
	next := n.sandbox(t, "next")
	next.mustAdd()
	wantHeld(t, "172.31.2.0/24 default/next net1")
	if st := statusOf(t, "next"); len(st) != 2 || !reflect.DeepEqual(st[1].IPs, []string{"172.31.2.2"}) {
		t.Errorf("network-status: %+v", st)
	}
	next.mustDel()
}

// slices: with node_slice_size each node has a range of its own, which
// whereabouts' controller assigns. Here the test assigns it.
func slices(t *testing.T, l *lab) {
	object(t, crs+"nodeslicepools", "sliced", map[string]any{
		"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool", "metadata": map[string]any{"name": "sliced"},
		"spec": map[string]any{"range": "10.62.0.0/16", "sliceSize": "/24"},
		"status": map[string]any{"allocations": []any{
			map[string]any{"nodeName": l.nodes[0].name, "sliceRange": "10.62.0.0/24"},
			map[string]any{"nodeName": l.nodes[1].name, "sliceRange": "10.62.1.0/24"},
		}},
	})
	nad(t, "sliced", "", `{
		"cniVersion": "1.0.0", "name": "sliced", "type": "macvlan", "master": "`+sharedNIC+`",
		"ipam": {"type": "whereabouts", "range": "10.62.0.0/16", "node_slice_size": "/24", "configuration_path": "/etc/cni/net.d/whereabouts.d"}
	}`)
	var boxes [2]*sandbox
	for i, n := range l.nodes {
		pod := fmt.Sprintf("sliced-%d", i)
		simplePod(t, pod, "sliced")
		boxes[i] = n.sandbox(t, pod)
		boxes[i].mustAdd()
		want := fmt.Sprintf("10.62.%d.1", i)
		if st := statusOf(t, pod); len(st) != 2 || !reflect.DeepEqual(st[1].IPs, []string{want}) {
			t.Errorf("network-status, want %s: %+v", want, st)
		}
		// The mask is that of the whole range: nodes are neighbors.
		if out := boxes[i].netns.IP("-o", "addr", "show", "dev", "net1"); !strings.Contains(out, want+"/16 ") {
			t.Errorf("net1 has not %s/16:\n%s", want, out)
		}
	}
	wantHeld(t, "10.62.0.0/24 default/sliced-0 net1", "10.62.1.0/24 default/sliced-1 net1")
	boxes[0].netns.Exec("ping", "-c1", "-W5", "10.62.1.1")
	for _, s := range boxes {
		s.mustDel()
	}
}
