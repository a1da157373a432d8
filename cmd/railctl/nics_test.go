package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

func TestNameThatAPodChoseIsHarmlessInEachFormat(t *testing.T) {
	numa := 1
	list := []inventory.NIC{
		{
			Name: "\x1b[2J\xff\x7f", PCI: "0000:3d:00.0", Vendor: "15b3", Device: "1021", NUMA: &numa, Mbps: 400000, MTU: 9000, Link: inventory.LinkUp,
			Ports: []inventory.Port{{Device: "mlx5_0", Port: 1, State: "ACTIVE"}},
			GPUs:  []inventory.GPU{{PCI: "0000:3e:00.0", Distance: pcie.PIX}, {PCI: "0000:3f:00.0", Distance: pcie.PIX}, {PCI: "0000:60:00.0", Distance: pcie.SYS}},
		},
		{Name: "ens2", Mbps: 2500, Macvlans: 3},
		{PCI: "0000:51:00.0", Driver: "vfio-pci", Lent: &inventory.Lent{Pod: "default/dpdk"}},
	}
	for f, want := range map[format][]string{
		asTable: {`"\x1b[2J\xff\x7f" 0000:3d:00.0 1 - 400G up mlx5_0/1 ACTIVE PIX 0000:3e:00.0,0000:3f:00.0 - 15b3:1021 - 9000`, "ens2 - - - 2500M - - - - 3 macvlan(s)", "- 0000:51:00.0 - vfio-pci - - - - - default/dpdk"},
		asJSON:  {`"distance": "PIX"`, `"mbps": 400000`},
		asYAML:  {"distance: PIX", "mbps: 400000"},
	} {
		var out bytes.Buffer
		if err := f.print(&out, list, nicRows(list, true)); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		text := strings.Join(strings.Fields(out.String()), " ")
		for _, w := range want {
			if f != asTable {
				text = out.String()
			}
			if !strings.Contains(text, w) {
				t.Errorf("%s lacks %q:\n%s", f, w, text)
			}
		}
		if strings.Contains(text, "\x1b") || strings.Contains(text, "\xff") {
			t.Errorf("%s has the characters of the name: %q", f, text)
		}
	}
}
