package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// someNICs returns NICs of a node that are not sorted by their addresses. One NIC is lent, so its
// names and its RDMA device come from the ledger. Another NIC is the node's uplink.
func someNICs() []resource.NIC {
	chars := []string{"/dev/infiniband/uverbs0"}
	return []resource.NIC{
		{PCI: "0000:5d:00.0", Names: []string{"ens12np0"}, Vendor: "15b3", LinkType: "ether", RDMA: []string{"mlx5_1"}, CharDevices: chars},
		{PCI: "0000:01:00.0", Names: []string{"ens1f0"}, Vendor: "15b3", LinkType: "ether", CharDevices: chars, Protected: "a default route of\nthe host leaves by it"},
		{PCI: "0000:1a:00.0", Names: []string{"ens11np0"}, Vendor: "15b3", LinkType: "ether", RDMA: []string{"mlx5_0"}, CharDevices: chars},
		{PCI: "0000:1a:00.1", Vendor: "15b3", LinkType: "ether", CharDevices: chars, PF: "ens11np0", Parent: "0000:1a:00.0"},
		{PCI: "0000:9c:00.0", Names: []string{"ib0"}, Vendor: "15b3", LinkType: "infiniband", CharDevices: chars},
		{PCI: "0000:ab:00.0", Names: []string{"eth9"}, Vendor: "8086", LinkType: "ether"},
		{Names: []string{"veth0"}, LinkType: "ether"},
	}
}

func TestRailsAreProposedInPCIOrder(t *testing.T) {
	for _, c := range []struct{ selection, want string }{
		{"", `rails:
- {id: 0, pci: "0000:1a:00.0"}  # ens11np0, mlx5_0
- {id: 1, pci: "0000:5d:00.0"}  # ens12np0, mlx5_1
- {id: 2, pci: "0000:9c:00.0"}  # ib0
# no rail: ens1f0: a default route of the host leaves by it
`},
		{"{linkTypes: [infiniband]}", `rails:
- {id: 0, pci: "0000:9c:00.0"}  # ib0
`},
		{`{vendors: ["8086"]}`, `rails:
- {id: 0, pci: "0000:ab:00.0"}  # eth9
`},
	} {
		var out bytes.Buffer
		d := discovery{selection: c.selection}
		if err := d.run(&out, someNICs()); err != nil {
			t.Errorf("%s: %v", c.selection, err)
			continue
		}
		equal(t, c.selection, out.String(), c.want)
		file, err := nodefile.Parse(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if _, problems := file.Rails.Assign(someNICs()); len(problems) != 0 {
			t.Errorf("%s: %v", c.selection, problems)
		}
	}
}

func TestRailsThatCannotBeProposed(t *testing.T) {
	for _, c := range []struct {
		d     discovery
		texts []string
	}{
		{discovery{selection: `{vendors: ["1077"]}`}, []string{"no NIC", "railctl nics"}},
		{discovery{selection: `{ifNames: [ens1f0]}`}, []string{"no NIC", "none of the selected NICs may be lent", "ens1f0", "default route"}},
		{discovery{selection: `{vendor: ["15b3"]}`}, []string{"--select", `did you mean "vendors"?`}},
		{discovery{selection: `[`}, []string{"--select"}},
		{discovery{replace: true}, []string{"--write"}},
	} {
		var out bytes.Buffer
		err := c.d.run(&out, someNICs())
		if err == nil || out.Len() > 0 {
			t.Errorf("%+v: %v, %q", c.d, err, out.String())
			continue
		}
		contains(t, c.d.selection, err.Error(), c.texts...)
	}
}

func TestRailsAreWrittenIntoTheNodeFile(t *testing.T) {
	const rails = "rails:\n- {id: 0, pci: \"0000:1a:00.0\"}  # ens11np0, mlx5_0\n- {id: 1, pci: \"0000:5d:00.0\"}  # ens12np0, mlx5_1\n"
	for name, c := range map[string]struct {
		old, want string
		replace   bool
		text      string // of the error
	}{
		"no file":         {want: rails},
		"a comment":       {old: "# of node 7\n", want: "# of node 7\n" + rails},
		"other keys":      {old: "nics: # ours\n- {name: ens*}   # all\n\nallow: []\n", want: "nics: # ours\n- {name: ens*}   # all\n\nallow: []\n" + rails},
		"no last newline": {old: "allow: []", want: "allow: []\n" + rails},
		"rails":           {old: "allow: []\nrails: {auto: pciOrder}\n", text: "already has rails"},
		"rails that are replaced": {
			old:  "# top\nallow: []\nrails: # as cabled\n- {id: 0,\n   name: a}\n# - {id: 1, name: b}\n\n# about paths\npaths:\n- /x/*\n",
			want: "# top\nallow: []\n" + rails + "# - {id: 1, name: b}\n\n# about paths\npaths:\n- /x/*\n", replace: true,
		},
		"rails at the end":   {old: "allow: []\nrails:\n  auto: pciOrder\n  # by vendor\n  select: {rdma: true}\n# end\n", want: "allow: []\n" + rails + "# end\n", replace: true},
		"nothing to replace": {old: "allow: []\n", want: "allow: []\n" + rails, replace: true},
		"one line":           {old: "{allow: [], rails: {auto: pciOrder}}\n", replace: true, text: "at the beginning of a line"},
		"end of document":    {old: "allow: []\n...\n", text: "would be invalid"},
		"a mistake":          {old: "alow: []\n", text: "alow"},
		"no YAML":            {old: "a: [\n", text: "line"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "rail-cni", "node.yaml")
			if c.old != "" {
				if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(c.old), 0o640); err != nil {
					t.Fatal(err)
				}
			}
			d := discovery{file: path, write: true, replace: c.replace, selection: `{rdma: true, linkTypes: [ether]}`}
			var out bytes.Buffer
			err := d.run(&out, someNICs())
			have, _ := os.ReadFile(path)
			if c.text != "" {
				if err == nil || !strings.Contains(err.Error(), c.text) || string(have) != c.old {
					t.Errorf("error %v, want %q; the file is now\n%s", err, c.text, have)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "the file", string(have), c.want)
			contains(t, "stdout", out.String(), "2 rails written to "+path, "# no rail: ens1f0")
			file, err := nodefile.Read(path)
			if err != nil || len(file.Rails.List) != 2 {
				t.Errorf("it is read as %+v, %v", file, err)
			}
			info, err := os.Stat(path)
			if err != nil || c.old != "" && info.Mode().Perm() != 0o640 {
				t.Errorf("its mode is %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestRailsAreNotWrittenThroughALink(t *testing.T) {
	dir := t.TempDir()
	real, path := filepath.Join(dir, "real.yaml"), filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(real, []byte("allow: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, path); err != nil {
		t.Fatal(err)
	}
	d := discovery{file: path, write: true}
	if err := d.run(&bytes.Buffer{}, someNICs()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v", err)
	}
}
