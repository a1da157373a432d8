package multus

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// pciScript makes for the NICs $1… the PCI functions 0000:1a:00.0, 0000:1b:00.0 …, with RDMA char
// devices. sysfs keeps the names while a NIC is lent.
const pciScript = `
mkdir -p /run/pci
mount -t tmpfs tmpfs /sys/bus/pci/devices
at=26
for nic in "$@"; do
	pci=$(printf '0000:%02x:00.0' $at)
	mkdir -p /run/pci/$pci/net/$nic /run/pci/$pci/infiniband_verbs/uverbs$at
	echo 0x020000 >/run/pci/$pci/class
	echo 0x15b3 >/run/pci/$pci/vendor
	echo 0x1021 >/run/pci/$pci/device
	ln -s /run/pci/$pci /sys/bus/pci/devices/$pci
	at=$((at + 1))
done`

// inside runs a script in the node's mount namespace.
func (n *node) inside(t testing.TB, script string, args ...string) {
	t.Helper()
	all := append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", n.pid), "--", "sh", "-ec", script, "sh"}, args...)
	if out, err := exec.Command("nsenter", all...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// oneNetworkServesAllRails applies the example of one network that a pod names eight times.
// Multus passes each of the eight devices once, in the order of their addresses, and each
// interface gets an address of the rail of its NIC.
func oneNetworkServesAllRails(t *testing.T, l *lab) {
	const resource = "rdma/roce"
	n := l.nodes[0]
	n.inside(t, pciScript, rails(t)...)
	file, err := examples.Files.ReadFile("rail-node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n.write(nodefile.DefaultPath, string(file))
	defer n.inside(t, "umount /sys/bus/pci/devices; rm -r /run/pci $1", nodefile.DefaultPath)
	// These NICs have no RDMA.
	text := strings.ReplaceAll(string(documents(t, "rail-nad.yaml")[0]), `"rdma": "required",`, "")
	object(t, networks, "roce-net", []byte(text))
	object(t, pods, "all-rails", documents(t, "rail-pod.yaml")[0])
	s := n.sandbox(t, "all-rails")
	railOf := map[string]int{}
	for rail, nic := range rails(t) {
		railOf[nic] = rail
	}
	var ids []string
	for _, at := range []int{5, 0, 7, 2, 6, 1, 4, 3} { // the kubelet has no order
		ids = append(ids, fmt.Sprintf("0000:%02x:00.0", 0x1a+at))
	}
	n.writeJSON("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", map[string]any{"Data": map[string]any{
		"PodDeviceEntries": []any{
			map[string]any{"PodUID": s.conf.Args[4][1], "ResourceName": resource, "DeviceIDs": map[string]any{"-1": ids}},
		},
	}})
	defer n.write("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", "{}")
	s.mustAdd()
	var holders []string
	for _, r := range n.records() {
		rail := railOf[r.NICName()]
		if r.Rail == nil || *r.Rail != rail || len(r.Addresses) != 1 || r.Addresses[0] != fmt.Sprintf("10.%d.0.2/16", rail) {
			t.Errorf("%s of %s: rail %v, addresses %v", r.IfName, r.NICName(), r.Rail, r.Addresses)
		}
		if r.IfName != fmt.Sprintf("net%d", rail+1) { // Multus 4.3.0 sorts the devices (SortDeviceIDs)
			t.Errorf("rail %d is %s", rail, r.IfName)
		}
		if passed := s.stdin(r.IfName)["deviceID"]; passed != fmt.Sprintf("0000:%02x:00.0", 0x1a+rail) {
			t.Errorf("%s of %s: Multus has passed the device %v", r.IfName, r.NICName(), passed)
		}
		holders = append(holders, fmt.Sprintf("10.%d.0.0/16 default/all-rails %s", rail, r.IfName))
	}
	if len(holders) != len(ids) {
		t.Errorf("%d attachments, want %d", len(holders), len(ids))
	}
	wantHeld(t, holders...)
	s.mustDel()
}
