package resource

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// server returns the NICs of a node with eight rails, an uplink, and a NIC with virtual
// functions. The rails' PCI addresses are in another order than their names.
func server() []NIC {
	var nics []NIC
	for i, name := range []string{"ens12np0", "ens11np0", "ens13np0", "ens14np0", "ens16np0", "ens15np0", "ens17np0", "ens18np0"} {
		nics = append(nics, NIC{
			PCI: fmt.Sprintf("0000:%x:00.0", 0x1c+i*0x10), Names: []string{name, "rail" + fmt.Sprint(i)}, MAC: fmt.Sprintf("b8:ce:f6:00:00:%02x", i),
			Vendor: "15b3", Device: "1021", Driver: "mlx5_core", LinkType: "ether",
			RDMA: []string{fmt.Sprintf("mlx5_%d", i)}, CharDevices: []string{fmt.Sprintf("/dev/infiniband/uverbs%d", i), fmt.Sprintf("/dev/infiniband/umad%d", i)},
		})
	}
	nics = append(nics, NIC{PCI: "0000:05:00.0", Names: []string{"eno1"}, Vendor: "8086", Device: "1572", Driver: "i40e", LinkType: "ether", ACPIIndex: 101, Protected: "it has the default route"})
	for vf := range 4 {
		nics = append(nics, NIC{
			PCI: fmt.Sprintf("0000:99:00.%d", 2+vf), Names: []string{fmt.Sprintf("ens1f0v%d", vf)}, Vendor: "15b3", Device: "101e", Driver: "mlx5_core", LinkType: "ether",
			PF: "ens1f0", Parent: "0000:99:00.1", VF: vf, CharDevices: []string{fmt.Sprintf("/dev/infiniband/uverbs%d", 20+vf)},
		})
	}
	slices.Reverse(nics) // the order does not matter
	return nics
}

// eight is the key rails for the server.
func eight(t *testing.T) *Rails {
	t.Helper()
	var r Rails
	if err := yaml.Unmarshal([]byte("{auto: pciOrder, select: {devices: [\"1021\"]}}"), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func parse(t *testing.T, text string) *Config {
	t.Helper()
	var c Config
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return &c
}

// names returns the pool's NICs by their first names.
func names(p Pool) string {
	var all []string
	for _, n := range p.NICs {
		all = append(all, n.Names[0])
	}
	return strings.Join(all, " ")
}

// describe returns pools and problems, a line for each.
func describe(pools []Pool, problems []Problem) string {
	var out strings.Builder
	for _, p := range pools {
		fmt.Fprintf(&out, "%s %s: %s\n", p.Resource, p.Mode, names(p))
	}
	for _, p := range problems {
		fmt.Fprintf(&out, "%s: %s\n", p.Reason, p.Message)
	}
	return out.String()
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestNearestKey(t *testing.T) {
	for key, want := range map[string]string{
		"vendor": "vendors", "deviceIDs": "devices", "ifnames": "ifNames", "driver": "drivers", "pciAddress": "pciAddresses",
		"rootDevice": "rootDevices", "RDMA": "rdma", "isRdma": "rdma", "xyzzy": "", "": "", strings.Repeat("x", 1<<20): "",
	} {
		if got := nearest(key, selectKeys); got != want {
			t.Errorf("%.20q: %q, want %q", key, got, want)
		}
	}
}

// Each level would double the work.
func TestAMappingThatMergesItselfIsAnErrorAtOnce(t *testing.T) {
	for _, text := range []string{
		"&a {<<: *a}", "&a {<<: [" + strings.TrimSuffix(strings.Repeat("*a, ", 64), ", ") + "]}", "{<<: [{<<: &a {<<: *a}}]}",
	} {
		var c Config
		if err := yaml.Unmarshal([]byte(text), &c); err == nil {
			t.Errorf("%.40s is taken", text)
		}
	}
}
