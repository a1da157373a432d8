package inventory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/rdma/netdevs"
)

// files writes the files below dir; a text that begins with "->" is a symbolic link.
func files(t *testing.T, dir string, texts map[string]string) {
	t.Helper()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if len(text) > 2 && text[:2] == "->" {
			err = os.Symlink(text[2:], path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// newMachine makes a machine of which sysfs has two NICs and two GPUs. No namespace has
// their netdevs: the first NIC is lent, a userspace driver holds the second.
func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	files(t, dir, map[string]string{
		"sys/bus/pci/devices/0000:3d:00.0":                            "->../../../devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0",
		"sys/devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/class":      "0x020000\n",
		"sys/devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/vendor":     "0x15b3\n",
		"sys/devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/device":     "0x1021\n",
		"sys/devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/numa_node":  "1\n",
		"sys/devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/driver":     "->/drivers/mlx5_core",
		"sys/devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0/net/.empty": "",
		"sys/bus/pci/devices/0000:51:00.0":                            "->../../../devices/pci0000:50/0000:51:00.0",
		"sys/devices/pci0000:50/0000:51:00.0/class":                   "0x020000\n",
		"sys/devices/pci0000:50/0000:51:00.0/driver":                  "->/drivers/vfio-pci",
		"sys/bus/pci/devices/0000:52:00.0":                            "->../../../devices/pci0000:50/0000:52:00.0",
		"sys/devices/pci0000:50/0000:52:00.0/class":                   "0x020000\n", // without a driver
		"sys/bus/pci/devices/0000:60:00.0":                            "->../../../devices/pci0000:60/0000:60:00.0",
		"sys/devices/pci0000:60/0000:60:00.0/class":                   "0x030200\n",
		"sys/devices/pci0000:60/0000:60:00.0/vendor":                  "0x10de\n",
		"sys/devices/pci0000:60/0000:60:00.0/numa_node":               "0\n",
		"sys/bus/pci/devices/0000:3e:00.0":                            "->../../../devices/pci0000:3a/0000:3a:01.0/0000:3e:00.0",
		"sys/devices/pci0000:3a/0000:3a:01.0/0000:3e:00.0/class":      "0x030200\n",
		"sys/devices/pci0000:3a/0000:3a:01.0/0000:3e:00.0/vendor":     "0x10de\n",
		"sys/devices/pci0000:3a/0000:3a:01.0/0000:3e:00.0/numa_node":  "1\n",
		"proc/driver/nvidia/gpus/0000:3E:00.0/information":            "Model: \t NVIDIA H100\nGPU UUID: \t GPU-6b4b1ba3\nBus Location: \t 0000:3e:00.0\n",
	})
	n := testnet.NewNetns(t, "node")
	return &machine{
		host:      &nic.Host{Netns: n.Netns, Sys: filepath.Join(dir, "sys"), Proc: filepath.Join(dir, "proc")},
		stateDirs: []string{filepath.Join(dir, "state")}, nodeFile: &nodefile.Reader{Path: filepath.Join(dir, "node.yaml")},
		isNIC: (*link.Link).HasParent,
	}
}

func TestLentNICKeepsItsFactsAndItsGPUs(t *testing.T) {
	m := newMachine(t)
	list, err := m.nics()
	if err != nil || len(list.Errors) > 0 {
		t.Fatal(err, list.Errors)
	}
	if len(list.NICs) != 1 || list.NICs[0].PCI != "0000:51:00.0" || list.NICs[0].Driver != "vfio-pci" || list.NICs[0].Name != "" || list.NICs[0].NUMA != nil {
		t.Errorf("nothing is lent: %+v", list.NICs)
	}

	a := &Attachment{NIC: "ens1", PCI: "0000:3d:00.0", Pod: "default/trainer", IfName: "net1", Link: LinkUp, MTU: 9000, record: &ledger.Record{
		Loan: &ledger.Loan{Name: "ens1", PCI: "0000:3d:00.0"},
	}, RDMA: &RDMA{Devices: []RDMADevice{{Name: "mlx5_0", Port: 1, State: "ACTIVE"}}}}
	list.hold(a)
	m.complete(list, nil)
	n := list.find("ens1", "")
	if n == nil {
		t.Fatalf("%+v", list.NICs)
	}
	if n.Vendor != "15b3" || n.Device != "1021" || n.Driver != "mlx5_core" || n.NUMA == nil || *n.NUMA != 1 || n.Lent.Pod != "default/trainer" ||
		n.MTU != 9000 || len(n.Ports) != 1 || n.Ports[0] != (Port{"mlx5_0", 1, "ACTIVE"}) {
		t.Errorf("%+v", n)
	}
	if len(n.GPUs) != 2 || n.GPUs[0] != (GPU{"0000:3e:00.0", "GPU-6b4b1ba3", pcie.PHB}) || n.GPUs[1] != (GPU{"0000:60:00.0", "", pcie.SYS}) {
		t.Errorf("GPUs %+v", n.GPUs)
	}
}

func TestHoldersOfOneNIC(t *testing.T) {
	tree, err := pcie.Read(newMachine(t).host.Sys)
	if err != nil {
		t.Fatal(err)
	}
	list := &NICList{NICs: []NIC{{Name: "ens1", PCI: "0000:3d:00.0"}, {PCI: "0000:51:00.0"}}, Tree: tree}
	for _, a := range []*Attachment{
		{NIC: "ens1", record: &ledger.Record{Child: &ledger.Child{Master: "ens1"}}},
		{NIC: "ens1", record: &ledger.Record{Child: &ledger.Child{Master: "ens1"}}},
		{NIC: "away", record: &ledger.Record{Child: &ledger.Child{Master: "away"}}},
		{NIC: "0000:51:00.0", Pod: "default/dpdk", record: &ledger.Record{Loan: &ledger.Loan{PCI: "0000:51:00.0", Driver: "vfio-pci"}}},
		{Pod: "default/chained", record: &ledger.Record{RDMA: &ledger.RDMA{}}, RDMA: &RDMA{Devices: []RDMADevice{{Name: "mlx5_7", Parent: "0000:3e:00.0", Lent: true}}}},
		{Pod: "default/shared", record: &ledger.Record{RDMA: &ledger.RDMA{}}, RDMA: &RDMA{Devices: []RDMADevice{{Name: "mlx5_0", Parent: "0000:3d:00.0"}}}},
		{Pod: "default/subfunction", record: &ledger.Record{RDMA: &ledger.RDMA{}}, RDMA: &RDMA{Devices: []RDMADevice{{Parent: "mlx5_core.sf.4", Lent: true}}}},
		{record: &ledger.Record{}},
	} {
		list.hold(a)
	}
	if len(list.NICs) != 3 {
		t.Fatalf("%+v", list.NICs)
	}
	if n := list.NICs[0]; n.Children != 2 || n.Lent != nil {
		t.Errorf("the master: %+v", n)
	}
	if n := list.NICs[1]; n.Lent == nil || n.Lent.Pod != "default/dpdk" {
		t.Errorf("of a userspace driver: %+v", n)
	}
	if n := list.NICs[2]; n.Name != "" || n.PCI != "0000:3e:00.0" || n.Lent == nil || n.Lent.Pod != "default/chained" {
		t.Errorf("of another plugin: %+v", n)
	}
}

func TestPortBelongsToItsOwnInterfaceOfAFunction(t *testing.T) {
	const function, lentOne, subfunction = "0000:3d:00.0", "0000:41:00.0", "mlx5_core.sf.4"
	lent := func(name, pci string, ports ...Port) NIC {
		return NIC{Name: name, PCI: pci, Lent: &Lent{}, Ports: ports}
	}
	list := &NICList{NICs: []NIC{
		{Name: "rep0", PCI: function, Representor: true},
		{Name: "rail0", PCI: function},
		{Name: "rail1", PCI: function},
		{Name: "sf0", PCI: function, Auxiliary: subfunction},
		{Name: "ib0", PCI: "0000:3e:00.0"},
		{PCI: "0000:3f:00.0"},
		lent("away0", lentOne, Port{Device: "mlx5_6", Port: 1}), lent("away1", lentOne),
		{Name: "rail2", PCI: lentOne},
	}}
	for name, c := range map[string]struct {
		parent, netdev, layer string
		want                  string // name and PCI address
	}{
		"its own":                                {function, "rail1", "Ethernet", "rail1 " + function},
		"its interface is in another netns":      {function, "", "Ethernet", ""},
		"a bond's member":                        {function, "bond0", "Ethernet", "rail0 " + function},
		"a subfunction, member of a bond":        {subfunction, "bond0", "Ethernet", "sf0 " + function},
		"InfiniBand":                             {"0000:3e:00.0", "", "InfiniBand", "ib0 0000:3e:00.0"},
		"a function without an interface":        {"0000:3f:00.0", "", "Ethernet", " 0000:3f:00.0"},
		"another function":                       {"0000:40:00.0", "", "InfiniBand", ""},
		"a lent one whose record lacks the RDMA": {lentOne, "", "Ethernet", "away1 " + lentOne},
	} {
		have := ""
		if n := list.ofPort(netdevs.Pair{Parent: c.parent, Netdev: c.netdev, LinkLayer: c.layer}); n != nil {
			have = n.Name + " " + n.PCI
		}
		if have != c.want {
			t.Errorf("%s: %q, not %q", name, have, c.want)
		}
	}
	if !list.hasLent(netdevs.Pair{Device: "mlx5_6", Port: 1}) || list.hasLent(netdevs.Pair{Device: "mlx5_6", Port: 2}) || list.hasLent(netdevs.Pair{Device: "mlx5_7", Port: 1}) {
		t.Error("the port that a lent NIC has by its record is not known")
	}
}
