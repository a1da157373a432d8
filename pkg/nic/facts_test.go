package nic

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// described adds to the devices of machine what pools select by.
func described(t *testing.T) *Host {
	t.Helper()
	h := machine(t)
	at := func(pci string) string { return filepath.Join(h.Sys, "bus/pci/devices", pci) }
	for file, text := range map[string]string{
		at(pciPlain) + "/class": "0x020000\n", at(pciPlain) + "/vendor": "0x15b3\n", at(pciPlain) + "/device": "0x1021\n",
		at(pciPlain) + "/numa_node": "1\n", at(pciPlain) + "/acpi_index": "7\n",
		at(pciPlain) + "/infiniband/mlx5_0/node_type": "", at(pciPlain) + "/infiniband_verbs/uverbs3/dev": "", at(pciPlain) + "/infiniband_mad/umad3/dev": "",
		at(pciKernel) + "/class":                       "0x020000\n", // a virtual function of pciPlain, on the host
		at(pciEmpty) + "/class":                        "0x020700\n", // lent: an empty directory net, and infiniband
		at(pciEmpty) + "/infiniband_verbs/uverbs4/dev": "",
		at(pciDPDK) + "/class":                         "0x030200\n", // no NIC
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	symlink(t, "../"+pciKernel, filepath.Join(at(pciPlain), "virtfn5"))
	symlink(t, "../"+pciPlain, filepath.Join(at(pciKernel), "physfn"))
	return h
}

func TestFactsOfNetworkFunctions(t *testing.T) {
	h := described(t)
	lent := resource.NIC{Names: []string{"ib0", "ibs1"}, MAC: "00:00:10:29:fe:80:00:00:00:00:00:00:02:00:00:00:00:00:00:77", RDMA: []string{"mlx5_7"}}
	facts, err := h.Facts(map[string]resource.NIC{pciEmpty: lent, pciPlain: {Names: []string{"old"}, RDMA: []string{"old"}}})
	if err != nil {
		t.Fatal(err)
	}
	mac := func(name string) string {
		l, err := link.ByName(h.Netns, name)
		if err != nil {
			t.Fatal(err)
		}
		return l.MAC.String()
	}
	numa := 1
	want := []resource.NIC{
		{
			PCI: pciPlain, Names: []string{"ens2"}, MAC: mac("ens2"), Vendor: "15b3", Device: "1021", LinkType: "ether", ACPIIndex: 7, RDMA: []string{"mlx5_0"},
			NUMA: &numa, CharDevices: []string{"/dev/infiniband/umad3", "/dev/infiniband/uverbs3"},
		},
		{PCI: pciKernel, Names: []string{"ens3"}, MAC: mac("ens3"), Vendor: "0000", Device: "0000", Driver: "mlx5_core", LinkType: "ether", PF: "ens2", VF: 5, Parent: pciPlain},
		{PCI: pciEmpty, Names: lent.Names, MAC: lent.MAC, Vendor: "0000", Device: "0000", LinkType: "infiniband", RDMA: lent.RDMA, CharDevices: []string{"/dev/infiniband/uverbs4"}},
	}
	for i := range facts {
		facts[i].Path = nil // of the fixture's directory
	}
	if !reflect.DeepEqual(facts, want) {
		t.Errorf("the facts are\n%+v\nnot\n%+v", facts, want)
	}
}

// An RDMA device that moves has no char devices for a moment. Rails in PCI order, which
// count NICs with char devices, must not change.
func TestLentFunctionHasCharDevicesWhileItsRDMADeviceMoves(t *testing.T) {
	h := described(t)
	if err := os.RemoveAll(filepath.Join(h.Sys, "bus/pci/devices", pciEmpty, "infiniband_verbs")); err != nil {
		t.Fatal(err)
	}
	order := &resource.Rails{Auto: true}
	for name, known := range map[string][]string{"lent": {"/dev/infiniband/uverbs4"}, "without RDMA": nil} {
		facts, err := h.Facts(map[string]resource.NIC{pciEmpty: {CharDevices: known}, pciPlain: {CharDevices: []string{"/dev/infiniband/uverbs9"}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range facts {
			if n.PCI == pciEmpty && !slices.Equal(n.CharDevices, known) || n.PCI == pciPlain && len(n.CharDevices) != 2 {
				t.Errorf("%s: %s has %q", name, n.PCI, n.CharDevices)
			}
		}
		if rails, _ := order.Assign(facts); len(rails) != 1+len(known) {
			t.Errorf("%s: rails %v", name, rails)
		}
	}
}

func TestIDsOfNICs(t *testing.T) {
	h := described(t)
	of := func(l link.Link) *NIC { return &NIC{Link: &l} }
	onHost := func(name string) *NIC {
		l, err := link.ByName(h.Netns, name)
		if err != nil {
			t.Fatal(err)
		}
		return &NIC{Link: l}
	}
	symlink(t, filepath.Join(h.Sys, "devices/pci0000:00", pciVirtio, "virtio1"), filepath.Join(h.Sys, "bus/virtio/devices/virtio1"))
	ens2 := onHost("ens2").Link.Index
	for _, command := range []string{"link add br0 type bridge", "link set ens3 master br0"} { // in place of a bond
		args := append([]string{"--net=" + h.Netns.Path, "ip"}, strings.Fields(command)...)
		if out, err := exec.Command("nsenter", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", command, err, out)
		}
	}
	for name, c := range map[string]struct {
		n  *NIC
		is []string
	}{
		"a function of a userspace driver":      {&NIC{PCI: pciDPDK, Driver: "vfio-pci"}, []string{pciDPDK}},
		"a physical function":                   {of(link.Link{ParentBus: "pci", ParentDev: pciKernel}), []string{pciKernel}},
		"a subfunction, not its function":       {of(link.Link{ParentBus: "auxiliary", ParentDev: aux}), []string{aux}},
		"a virtio NIC, by its function":         {of(link.Link{ParentBus: "virtio", ParentDev: "virtio1"}), []string{pciVirtio}},
		"a NIC whose parent only sysfs has":     {onHost("ens3"), []string{pciKernel}},
		"a subfunction whose parent sysfs has":  {onHost("ens4"), []string{aux}},
		"a VLAN, by the NIC that it lies on":    {of(link.Link{Kind: "vlan", Lower: ens2}), []string{pciPlain}},
		"a VLAN whose NIC is in another netns":  {of(link.Link{Kind: "vlan", Lower: ens2, LowerInOtherNetns: true}), nil},
		"a link of several members":             {onHost("br0"), []string{pciKernel}},
		"a link that lies on nothing":           {of(link.Link{Kind: "dummy", Name: "dummy0"}), nil},
		"a link that lies on one that has gone": {of(link.Link{Kind: "vlan", Lower: 4711}), nil},
	} {
		var is []string
		for _, id := range []string{pciVirtio, pciPlain, pciDPDK, pciKernel, pciEmpty, aux, "0", "0000:99:00.0", ""} {
			if h.Is(c.n, id) {
				is = append(is, id)
			}
		}
		if !slices.Equal(is, c.is) {
			t.Errorf("%s is %q, not %q", name, is, c.is)
		}
	}
	for id, want := range map[string]bool{
		pciPlain: true, pciEmpty: true, pciVirtio: true, aux: true, // of pciVirtio the class is not known
		pciDPDK: false, "0": false, "": false, "0000:99:00.0": false,
	} {
		if h.IsNIC(id) != want {
			t.Errorf("%q is a NIC: %v", id, !want)
		}
	}
	for pci, want := range map[string]string{pciKernel: pciPlain, pciPlain: "", "": "", "../x": ""} {
		if got := h.PhysicalFunction(pci); got != want {
			t.Errorf("the physical function of %q is %q", pci, got)
		}
	}
}
