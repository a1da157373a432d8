package inventory

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// withFunctions adds to a machine's sysfs what the lent NIC at 0000:3d:00.0 has: char
// devices, an index of its slot, a virtual function and a subfunction.
func withFunctions(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	const pf = "devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/"
	const vf = "devices/pci0000:3a/0000:3a:00.0/0000:3d:00.1/"
	files(t, m.host.Sys, map[string]string{
		pf + "acpi_index":                                    "4\n",
		pf + "infiniband_verbs/uverbs3/ibdev":                "mlx5_0\n",
		pf + "infiniband_mad/umad3/port":                     "1\n",
		pf + "infiniband_mad/issm3/port":                     "1\n",
		pf + "infiniband_mad/abi_version":                    "5\n",
		pf + "virtfn7":                                       "->../0000:3d:00.1",
		pf + "mlx5_core.sf.4/sfnum":                          "88\n",
		pf + "mlx5_core.sf.4/driver":                         "->/drivers/mlx5_core.sf",
		vf + "class":                                         "0x020000\n",
		vf + "driver":                                        "->/drivers/mlx5_core",
		vf + "physfn":                                        "->../0000:3d:00.0",
		vf + "infiniband_verbs/uverbs4/ibdev":                "mlx5_1\n",
		"bus/pci/devices/0000:3d:00.1":                       "->../../../" + strings.TrimSuffix(vf, "/"),
		"bus/auxiliary/devices/mlx5_core.sf.4":               "->../../../" + pf + "mlx5_core.sf.4",
		pf + "mlx5_core.sf.4/infiniband_verbs/uverbs5/ibdev": "mlx5_2\n",
	})
	return m
}

// attached returns an attachment with a loan of the NIC with this parent device.
func attached(name, pci string, id link.Identity) *Attachment {
	return &Attachment{Pod: "default/trainer", State: Alive, record: &ledger.Record{Phase: ledger.Lent, Loan: &ledger.Loan{
		Name: name, PCI: pci, Identity: id,
		Snapshot: &nicstate.Snapshot{Name: name, AltNames: []string{"enp" + name}, MAC: "02:00:00:00:00:01", MTU: 1500},
		Hardware: &device.Hardware{Mbps: 400000, Firmware: "28.39.1002"},
	}}}
}

func TestFactsOfLentFunctions(t *testing.T) {
	m := withFunctions(t)
	list, err := m.nics()
	if err != nil {
		t.Fatal(err)
	}
	pf := attached("ens1", "0000:3d:00.0", link.Identity{ParentDev: "0000:3d:00.0", ParentBus: "pci", PermMAC: "02:00:00:00:00:01"})
	pf.RDMA = &RDMA{Devices: []RDMADevice{{Name: "mlx5_0", Port: 1, State: "ACTIVE"}}}
	vf := attached("ens1v7", "0000:3d:00.1", link.Identity{ParentDev: "0000:3d:00.1", ParentBus: "pci"})
	sf := attached("ens1s88", "0000:3d:00.0", link.Identity{ParentDev: "mlx5_core.sf.4", ParentBus: "auxiliary"})
	vf.record.Loan.Snapshot.MAC = strings.Repeat("00:", 19) + "01"
	vf.hardware = device.Hardware{Mbps: 100000}
	for _, a := range []*Attachment{pf, vf, sf} {
		list.hold(a)
	}
	m.complete(list, nil)
	m.protect(list, &held{}, nil)

	n := list.find("ens1", "")
	if n == nil || n.Kind != PF || n.Parent != "" || n.VFNumber != nil || n.ACPIIndex != 4 || n.LinkType != "ether" || n.Mbps != 400000 || n.Firmware != "28.39.1002" ||
		n.PermanentMAC != "02:00:00:00:00:01" || n.MTU != 1500 || !slices.Equal(n.AltNames, []string{"enpens1"}) || n.Protected != "" ||
		!slices.Equal(n.CharDevices, []string{"/dev/infiniband/issm3", "/dev/infiniband/umad3", "/dev/infiniband/uverbs3"}) ||
		!slices.Equal(n.Path, []string{"pci0000:3a", "0000:3a:00.0"}) {
		t.Errorf("physical function: %+v", n)
	}
	n = list.find("ens1v7", "")
	if n == nil || n.Kind != VF || n.Parent != "0000:3d:00.0" || n.VFNumber == nil || *n.VFNumber != 7 || n.PFName != "ens1" || n.LinkType != "infiniband" || n.Mbps != 100000 ||
		!slices.Equal(n.CharDevices, []string{"/dev/infiniband/uverbs4"}) {
		t.Errorf("virtual function: %+v", n)
	}
	n = list.find("ens1s88", "")
	if n == nil || n.Kind != SF || n.Auxiliary != "mlx5_core.sf.4" || n.Parent != "0000:3d:00.0" || n.PFName != "ens1" || n.Driver != "mlx5_core.sf" ||
		!slices.Equal(n.CharDevices, []string{"/dev/infiniband/uverbs5"}) {
		t.Errorf("subfunction: %+v", n)
	}

	facts := map[string]string{}
	for _, f := range list.Resource() {
		facts[f.PCI] = strings.Join(append(append([]string{f.MAC, f.LinkType, f.PF}, f.Names...), append(f.RDMA, f.CharDevices...)...), " ")
		if want := f.PCI == "0000:52:00.0"; want != (f.Protected != "") { // without a driver
			t.Errorf("%s is protected by %q", f.PCI, f.Protected)
		}
	}
	want := map[string]string{
		"0000:3d:00.0": "02:00:00:00:00:01 ether  ens1 enpens1 mlx5_0 /dev/infiniband/issm3 /dev/infiniband/umad3 /dev/infiniband/uverbs3",
		"0000:3d:00.1": strings.Repeat("00:", 19) + "01 infiniband ens1 ens1v7 enpens1v7 /dev/infiniband/uverbs4",
		"0000:51:00.0": " ether ", "0000:52:00.0": " ether ",
	}
	if !reflect.DeepEqual(facts, want) {
		t.Errorf("facts for pools: %q", facts)
	}
}

func TestLentNICHasCharDevicesWhileItsRDMADeviceMoves(t *testing.T) {
	m := withFunctions(t)
	for _, class := range []string{"infiniband_verbs", "infiniband_mad"} {
		if err := os.RemoveAll(filepath.Join(m.host.Sys, "devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0", class)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := m.nics()
	if err != nil {
		t.Fatal(err)
	}
	a := attached("ens1", "0000:3d:00.0", link.Identity{ParentDev: "0000:3d:00.0", ParentBus: "pci"})
	a.RDMA = &RDMA{Devices: []RDMADevice{{Name: "mlx5_0", Port: 1, State: Unknown, Uverbs: "uverbs3"}}}
	list.hold(a)
	m.complete(list, nil)
	want := []string{"/dev/infiniband/uverbs3"}
	if n, f := list.find("ens1", ""), list.factsAt("0000:3d:00.0"); !slices.Equal(n.CharDevices, want) || !slices.Equal(f.CharDevices, want) {
		t.Errorf("char devices %q, for pools %q", n.CharDevices, f.CharDevices)
	}
}

func TestLentNICThatTheKernelReturnedHasItsFacts(t *testing.T) {
	id := link.Identity{ParentDev: "0000:3d:00.0", ParentBus: "pci", PermMAC: "02:00:00:00:00:01"}
	for name, c := range map[string]struct {
		change func(a *Attachment)
		want   NIC
	}{
		"under its name in the pod": {func(*Attachment) {}, NIC{Name: "ens1", MTU: 1500, Lent: &Lent{Pod: "default/trainer", Phase: ledger.Lent, State: Gone}}},
		"in an earlier boot":        {func(a *Attachment) { a.ofEarlierBoot = true }, NIC{Name: "net1", MTU: 9000, Lent: &Lent{Pod: "default/trainer", Phase: ledger.Lent, State: Gone}}},
		"only addresses are left":   {func(a *Attachment) { a.record.Phase = ledger.Freeing }, NIC{Name: "net1", MTU: 9000}},
	} {
		list := &NICList{NICs: []NIC{{Name: "net1", PCI: "0000:3d:00.0", MTU: 9000, parentDev: id.ParentDev, hardware: id.Hardware()}}}
		a := attached("ens1", "0000:3d:00.0", id)
		a.State, a.Phase = Gone, ledger.Lent
		c.change(a)
		list.hold(a)
		if len(list.NICs) != 1 {
			t.Fatalf("%s: %+v", name, list.NICs)
		}
		n := list.NICs[0]
		if n.Name != c.want.Name || n.MTU != c.want.MTU || !reflect.DeepEqual(n.Lent, c.want.Lent) {
			t.Errorf("%s: %+v, lent %+v", name, n, n.Lent)
		}
	}
}

func TestNodeFileGivesRailsAndProtects(t *testing.T) {
	m := withFunctions(t)
	text := "nics: [{driver: mlx5_core}]\nrails:\n- {id: 5, pci: \"0000:51:00.0\"}\n- {id: 6, pci: \"0000:99:00.0\"}\n"
	if err := os.WriteFile(m.nodeFile.Path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := m.nics()
	if err != nil || len(list.Errors) > 0 {
		t.Fatal(err, list.Errors)
	}
	n := list.find("", "0000:51:00.0")
	if n == nil || n.Rail == nil || *n.Rail != 5 || !strings.Contains(n.Protected, "not open to networks") {
		t.Errorf("%+v", n)
	}
	if _, problems, err := list.Pools(); len(problems) == 0 || err != nil {
		t.Errorf("of a rail without a NIC: %v, %v", problems, err)
	}
	if err := os.WriteFile(m.nodeFile.Path, []byte("rials: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err = m.nics(); err != nil || len(list.Errors) != 1 || len(list.NICs) != 1 {
		t.Errorf("a node file with a mistake: %v %+v", err, list)
	}
}

func TestNodeIPOfALedgerProtects(t *testing.T) {
	m := newMachine(t)
	l, err := ledger.Open(m.stateDirs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.PutNodeIP(netip.MustParseAddr("192.0.2.7")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.nics(); err != nil {
		t.Fatal(err)
	}
	if ip, err := m.host.NodeIP(); err != nil || ip.String() != "192.0.2.7" {
		t.Errorf("%v, %v", ip, err)
	}
	if _, err := os.Stat(filepath.Join(m.stateDirs[0], "attachments")); err != nil {
		t.Error(err)
	}
}
