package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

func TestNameThatAPodChoseIsHarmlessInEachFormat(t *testing.T) {
	numa, rail := 1, 3
	list := []inventory.NIC{
		{
			Name: "\x1b[2J\xff\x7f", PCI: "0000:3d:00.0", Vendor: "15b3", Device: "ffff", NUMA: &numa, Rail: &rail, Firmware: "28.39", Mbps: 400000, MTU: 9000, Link: inventory.LinkUp,
			Ports: []inventory.Port{{Device: "mlx5_0", Port: 1, State: "ACTIVE"}},
			GPUs:  []inventory.GPU{{PCI: "0000:3e:00.0", Distance: pcie.PIX}, {PCI: "0000:3f:00.0", Distance: pcie.PIX}, {PCI: "0000:60:00.0", Distance: pcie.SYS}},
		},
		{Name: "ens2", Mbps: 2500, Children: 3},
		{PCI: "0000:51:00.0", Vendor: "15b3", Device: "1021", Model: "ConnectX-7", Driver: "vfio-pci", Lent: &inventory.Lent{Pod: "default/dpdk"}},
	}
	pools := []resource.Pool{{Resource: "rdma/a", NICs: []resource.NIC{{PCI: "0000:3d:00.0"}}}, {Resource: "rdma/b", NICs: []resource.NIC{{PCI: "0000:3d:00.0"}, {PCI: "0000:51:00.0"}}}}
	for f, want := range map[cli.Format][]string{
		cli.Table: {`"\x1b[2J\xff\x7f" 0000:3d:00.0 3 1 - 400G up mlx5_0/1 ACTIVE PIX 0000:3e:00.0,0000:3f:00.0 - 15b3:ffff - 9000 28.39 rdma/a,rdma/b`, "ens2 - - - - 2500M - - - - 3 child interface(s)", "- 0000:51:00.0 - - vfio-pci - - - - - default/dpdk ConnectX-7 - - - rdma/b"},
		cli.JSON:  {`"distance": "PIX"`, `"model": "ConnectX-7"`, `"mbps": 400000`},
		cli.YAML:  {"distance: PIX", "mbps: 400000"},
	} {
		var out bytes.Buffer
		if err := f.Print(&out, list, nicRows(list, pools, true)); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		text := strings.Join(strings.Fields(out.String()), " ")
		for _, w := range want {
			if f != cli.Table {
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

func TestNICsTellsOfAResourceThatSelectsNothing(t *testing.T) {
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "node.yaml")
	t.Setenv(nodefile.PathEnv, file)
	for _, c := range []struct {
		text, want string
		code       int
	}{
		{`resources: {pools: [{name: rdma/hca_gpu, mode: shared, max: 8, select: {ifNames: [ens99np0]}}]}`, "railctl: resource rdma/hca_gpu: NothingSelected: ", 0},
		{`rails: [{id: 3, name: ens99np0}]`, "ens99np0", 0},
		{`resources: {sharedConfigFile: ` + file + `.json}`, file + ".json", 1},
	} {
		if err := os.WriteFile(file, []byte(c.text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"table", "wide", "json"} {
			_, errOut, code := l.railctl("nics", "-o", format)
			if code != c.code || !strings.Contains(errOut, c.want) {
				t.Errorf("%s, -o %s: exit code %d, stderr %q, not %q", c.text, format, code, errOut, c.want)
			}
		}
	}
	if _, errOut, code := l.railctl("nics", "-o", "narrow"); code != 1 || !strings.Contains(errOut, "it must be one of table, wide, json, yaml") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}
