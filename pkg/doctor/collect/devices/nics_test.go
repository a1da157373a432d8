package devices

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// TestNICsOfRailsWithoutDriverOrInterfaceAreFacts: the inventory has only NICs with an interface on
// the host, lent NICs, and NICs with a userspace driver. Other NICs with a rail must be facts as
// well.
func TestNICsOfRailsWithoutDriverOrInterfaceAreFacts(t *testing.T) {
	files := map[string]string{}
	for address, numa := range map[string]string{"0000:3b:00.0": "0", "0000:3c:00.0": "1", "0000:3d:00.0": "-1", "0000:3f:00.0": "0"} {
		at := "sys/devices/pci0000:3a/0000:3a:01.0/" + address
		files["sys/bus/pci/devices/"+address+"@"] = "../../../devices/pci0000:3a/0000:3a:01.0/" + address
		files[at+"/class"], files[at+"/vendor"], files[at+"/device"], files[at+"/numa_node"] = "0x020000", "0x15b3", "0x1021", numa
	}
	files["sys/devices/pci0000:3a/0000:3a:01.0/0000:3d:00.0/driver@"] = "../../../../bus/pci/drivers/mlx5_core"
	files["sys/devices/pci0000:3a/0000:3a:01.0/0000:3f:00.0/net/ens4/mtu"] = "9000"
	root := scratch.Tree(t, files)
	functions, err := pcie.Read(filepath.Join(root, "sys"))
	if err != nil {
		t.Fatal(err)
	}
	list := &inventory.NICList{
		Tree: functions, NICs: []inventory.NIC{{Name: "ens1", PCI: "0000:3b:00.0"}},
		Rails: map[string]int{"0000:3b:00.0": 0, "0000:3c:00.0": 1, "0000:3d:00.0": 2, "0000:3e:00.0": 3, "0000:3f:00.0": 4},
	}
	found := misplaced(filepath.Join(root, "sys"), list)
	if len(found) != 2 {
		t.Fatalf("%+v", found)
	}
	a, b := found[0], found[1]
	if a.PCI != "0000:3c:00.0" || *a.Rail != 1 || a.Driver != "" || a.Vendor != "15b3" || a.Device != "1021" || a.NUMA == nil || *a.NUMA != 1 || len(a.Path) != 2 {
		t.Errorf("without a driver: %+v", a)
	}
	if b.PCI != "0000:3d:00.0" || *b.Rail != 2 || b.Driver != "mlx5_core" || b.NUMA != nil || b.Name != "" {
		t.Errorf("without an interface: %+v", b)
	}
}

// TestECNIsWhatTheDriverOfMLNXOFEDShows uses the paths in NVIDIA's manual of MLNX_OFED, "Explicit
// Congestion Notification".
func TestECNIsWhatTheDriverOfMLNXOFEDShows(t *testing.T) {
	files := map[string]string{}
	for priority := range 8 {
		for _, role := range []string{"roce_np", "roce_rp"} {
			on := "0\n"
			if priority == 3 || priority == 5 && role == "roce_np" {
				on = "1\n"
			}
			files[fmt.Sprintf("net/ens1/ecn/%s/enable/%d", role, priority)] = on
		}
	}
	files["net/ens2/mtu"] = "9000\n"
	files["net/ens3/ecn/roce_np/enable/0"] = "1\n"
	root := scratch.Tree(t, files)
	for name, want := range map[string]fact.ECN{"ens1": {Known: true, NP: "3,5", RP: "3"}, "ens2": {}} {
		if have, err := ecnIn(filepath.Join(root, "net", name, "ecn")); err != nil || have != want {
			t.Errorf("%s: %+v, %v, want %+v", name, have, err, want)
		}
	}
	if have, err := ecnIn(filepath.Join(root, "net/ens3/ecn")); err == nil || have.Known {
		t.Errorf("of some files: %+v", have)
	}
}
