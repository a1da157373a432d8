package devices

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/procs"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/records"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// nicReaderIn returns a reader of the tree.
func nicReaderIn(root string) *Reader {
	return &Reader{Reader: procs.NewReader(files.Roots{Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc"), Root: root}), Records: &records.Reader{IsRoot: true}}
}

func TestPCIeLinkIsJudgedByBothEnds(t *testing.T) {
	end := func(pci, speed, width, maxSpeed, maxWidth string) map[string]string {
		at := "sys/bus/pci/devices/" + pci + "/"
		return map[string]string{
			at + "current_link_speed": speed + "\n", at + "current_link_width": width + "\n",
			at + "max_link_speed": maxSpeed + "\n", at + "max_link_width": maxWidth + "\n",
		}
	}
	const nic, bridge = "0000:3b:00.0", "0000:3a:01.0"
	for _, c := range []struct {
		name  string
		files []map[string]string
		want  fact.PCIe
		err   string
	}{
		{"a full link", []map[string]string{end(nic, "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"), end(bridge, "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")}, fact.PCIe{GTs: 32, MaxGTs: 32, Width: 16, MaxWidth: 16}, ""},
		{"a newer NIC in an older slot", []map[string]string{end(nic, "16.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16"), end(bridge, "16.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "8")}, fact.PCIe{GTs: 16, MaxGTs: 16, Width: 8, MaxWidth: 8}, ""},
		{"a link that has trained low", []map[string]string{end(nic, "2.5 GT/s PCIe", "4", "16.0 GT/s PCIe", "16")}, fact.PCIe{GTs: 2.5, MaxGTs: 16, Width: 4, MaxWidth: 16}, ""},
		{"not on PCI Express", nil, fact.PCIe{}, ""},
		{"a virtual function without a physical one", []map[string]string{end(nic, "Unknown", "0", "16.0 GT/s PCIe", "16")}, fact.PCIe{}, ""},
		{"unknown speed", []map[string]string{end(nic, "Unknown", "16", "16.0 GT/s PCIe", "16")}, fact.PCIe{}, `"Unknown"`},
		{"within the root complex, where no link is", []map[string]string{end(nic, "Unknown", "0", "Unknown", "0")}, fact.PCIe{}, ""},
		{"width 255", []map[string]string{end(nic, "16.0 GT/s PCIe", "255", "16.0 GT/s PCIe", "16")}, fact.PCIe{}, `"255"`},
	} {
		files := map[string]string{}
		for _, f := range c.files {
			for name, text := range f {
				files[name] = text
			}
		}
		have, err := nicReaderIn(scratch.Tree(t, files)).pcieLink(nic, bridge)
		if c.err == "" && (err != nil || have != c.want) {
			t.Errorf("%s: %+v, %v", c.name, have, err)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: the error is %v", c.name, err)
		}
	}
}

// config returns a configuration space. It has the PCI Express capability with this port type, and
// after another extended capability the ACS capability with these controls.
func config(port, control uint16) []byte {
	text := make([]byte, 4096)
	text[capabilityList] = 0x40
	text[0x40], text[0x41] = 0x01, 0x60 // power management, then PCI Express
	text[0x60] = capabilityPCIe
	binary.LittleEndian.PutUint16(text[0x62:], port<<4|2)
	binary.LittleEndian.PutUint32(text[0x100:], 0x0001|1<<16|0x200<<20) // AER
	binary.LittleEndian.PutUint32(text[0x200:], extendedACS|1<<16)
	binary.LittleEndian.PutUint16(text[0x206:], control)
	return text
}

func TestRedirectingSwitchPorts(t *testing.T) {
	const root, up, down = "0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0"
	path := []string{"pci0000:3a", root, up, down}
	loop := config(switchDown, redirectRequest)
	binary.LittleEndian.PutUint32(loop[0x200:], 0x0001|1<<16|0x100<<20)
	for _, c := range []struct {
		name   string
		config []byte // of the port below
		want   []string
		err    bool
	}{
		{"requests are redirected", config(switchDown, redirectRequest), []string{down}, false},
		{"completions are redirected", config(switchDown, redirectReply), []string{down}, false},
		{"only source validation", config(switchDown, 1), []string{}, false},
		{"a root port", config(4, redirectRequest), []string{}, false},
		{"no extended space", config(switchDown, redirectRequest)[:256], []string{}, false},
		{"a list that is a loop", loop, []string{}, false},
		{"as an ordinary user", config(switchDown, redirectRequest)[:headerSize], nil, true},
		{"empty", nil, nil, true},
	} {
		at := "sys/bus/pci/devices/"
		dir := scratch.Tree(t, map[string]string{at + root + "/config": string(config(4, redirectRequest)), at + up + "/config": string(config(switchUpstream, 0)), at + down + "/config": string(c.config)})
		have, err := nicReaderIn(dir).redirecting(path)
		if (err != nil) != c.err || !slices.Equal(have, c.want) {
			t.Errorf("%s: %v, %v", c.name, have, err)
		}
	}
	if _, err := nicReaderIn(t.TempDir()).redirecting(path); err == nil {
		t.Error("a bridge without a configuration space redirects nothing")
	}
}

func TestNetworkManagersAreFoundByTheirFiles(t *testing.T) {
	manager := func(comm string) map[string]string {
		return map[string]string{"proc/1/comm": "systemd\n", "proc/200/comm": comm + "\n", "proc/self/ns/pid@": procs.InitPIDNamespace, "proc/200/ns/net@": "net:[1]"}
	}
	for _, c := range []struct {
		name, file, text, comm, want string
	}{
		{"NetworkManager", "run/NetworkManager/devices/7", "[device]\nmanaged=true\nnm-owned=0\n", "NetworkManager", "NetworkManager"},
		{"NetworkManager keeps off", "run/NetworkManager/devices/7", "[device]\nmanaged=false\n", "NetworkManager", ""},
		{"NetworkManager has ended", "run/NetworkManager/devices/7", "[device]\nmanaged=true\n", "bash", ""},
		{"networkd", "run/systemd/netif/links/7", "# comment\nADMIN_STATE=configured\nOPER_STATE=routable\n", "systemd-network", "systemd-networkd"},
		{"networkd keeps off", "run/systemd/netif/links/7", "ADMIN_STATE=unmanaged\n", "systemd-network", ""},
		{"another interface", "run/NetworkManager/devices/8", "[device]\nmanaged=true\n", "NetworkManager", ""},
	} {
		files := manager(c.comm)
		files[c.file] = c.text
		have := nicReaderIn(scratch.Tree(t, files)).managedBy(7)
		if !have.OK() || have.Value != c.want {
			t.Errorf("%s: %+v, not %q", c.name, have, c.want)
		}
	}
	dir := scratch.Tree(t, manager("NetworkManager"))
	if err := os.MkdirAll(filepath.Join(dir, "run/NetworkManager/devices/7"), 0o755); err != nil {
		t.Fatal(err)
	}
	if have := nicReaderIn(dir).managedBy(7); have.OK() {
		t.Errorf("a directory in place of the file: %+v", have)
	}
}

func TestTablesGoToTheirPhysicalFunctions(t *testing.T) {
	nics := func() []fact.NIC {
		vfs := fact.Known(fact.VFs{Count: 2}, "test")
		return []fact.NIC{{PCI: "a", Kind: "pf", VFs: vfs}, {PCI: "b", Kind: "pf", VFs: vfs}, {PCI: "c", Kind: "pf"}, {PCI: "d", Kind: "vf"}}
	}
	list := nics()
	read := fact.Known(FunctionTables{"a": fact.Known([]fact.Function{{Number: 1}}, "test")}, "test")
	addFunctions(list, &read)
	if a, b := list[0].Functions, list[1].Functions; !a.OK() || len(a.Value) != 1 || !b.OK() || len(b.Value) != 0 {
		t.Errorf("%+v, %+v", a, b)
	}
	list = nics()
	failed := fact.Failed[FunctionTables]("test", errors.New("no answer"))
	addFunctions(list, &failed)
	if a, c := list[0].Functions, list[2].Functions; a.Error != "no answer" || c.Source != "" || c.Error != "" {
		t.Errorf("%+v, %+v", a, c)
	}
}
