package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// edit is a step of an example in CONTRIBUTING.md: text is put behind the only place in
// the file that is anchor, or in place of it.
type edit struct {
	file, anchor string
	replaces     bool
	text         string // "" is the next Go block of the section
}

// guide are the edits of a section of CONTRIBUTING.md, in its order.
type guide struct {
	section  string
	edits    []edit
	packages []string // that exist before, and change
	run      string   // the tests of the first package that are run; "" is none
}

const planOfMacvlan = `return &attachment.Plan{
		Claim: []attachment.Part{child, rdma, ask, routes, link, info},
		Apply: []attachment.Part{ask, child, await, rdma, routes, link, ports, gids, info},
	}`

const (
	endOfRulesNIC = `	return p.GTs * float64(p.Width) * 128 / 130
}`
	endOfMTU = `its MTU is 1500 at 200 Gb/s", // which is slow as well as different
		},
	},`
)

// wants returns the step that makes a defect of the rig name the rule about a NIC in its
// want, between two texts.
func wants(nic, before, behind string) edit {
	return edit{
		file: "integration/rig/tests/zdoctor_defects_test.go", anchor: before + behind, replaces: true,
		text: before + `, "NIC-SUBNETS": "NIC ens` + nic + `np0"` + behind,
	}
}

var guides = []guide{
	{
		"Add a key to macvlan",
		[]edit{
			{file: "pkg/netconf/plugins_test.go", anchor: `"linkInContainer":true,"bcqueuelen":77`, text: `,"txqueuelen":500`},
			{file: "pkg/netconf/plugins_test.go", anchor: "got.BCQueueLen != 77 {\n\t\tt.Errorf(\"%+v\", got)\n\t}"},
			{file: "pkg/netconf/macvlan.go", anchor: "BCQueueLen uint32 `json:\"bcqueuelen\"`"},
			{file: "pkg/link/macvlan.go", anchor: "\tBCQueueLen uint32\n"},
			{file: "pkg/link/macvlan.go", anchor: "attrs = append(attrs, nlattr.Attr{Type: unix.IFLA_ADDRESS, Value: m.MAC})\n\t}"},
			{file: "pkg/link/macvlan_test.go", anchor: "BCQueueLen: 77", text: ", TxQueueLen: 321"},
			{file: "pkg/part/macvlan/macvlan.go", anchor: "BCQueueLen: p.Conf.BCQueueLen,"},
			{file: "pkg/part/plans/macvlan_test.go", anchor: `[]string{"bcqueuelen 500"}},`},
		},
		[]string{"./pkg/netconf", "./pkg/link", "./pkg/part/macvlan", "./pkg/part/plans"},
		"",
	},
	{
		"Add a part",
		[]edit{
			{file: "pkg/netconf/macvlan.go", anchor: "BCQueueLen uint32 `json:\"bcqueuelen\"`", text: "\nLabel string `json:\"label\"`"},
			{file: "pkg/ledger/record.go", anchor: "DeviceInfo string `json:\"deviceInfo,omitempty\"`"},
			{file: "pkg/part/label/label.go"},
			{file: "pkg/part/plans/plans.go", anchor: planOfMacvlan, replaces: true},
			{file: "pkg/part/plans/plans.go", anchor: "\"github.com/rail-cni/rail-cni/pkg/part/devinfo\"", text: "\n\"github.com/rail-cni/rail-cni/pkg/part/label\""},
			{file: "pkg/part/plans/order.go", anchor: "Files:     []attachment.Part{devinfo.Part{}},", replaces: true},
			{file: "pkg/part/plans/order.go", anchor: "\"github.com/rail-cni/rail-cni/pkg/part/devinfo\"", text: "\n\"github.com/rail-cni/rail-cni/pkg/part/label\""},
			{file: "pkg/part/plans/label_test.go"},
		},
		[]string{"./pkg/ledger", "./pkg/netconf", "./pkg/part/plans"},
		"",
	},
	{
		"Add a doctor rule",
		[]edit{
			{file: "pkg/doctor/rules/nics/nic.go", anchor: "func(v int) string { return fmt.Sprintf(\"MTU %d\", v) })\n\t\t},\n\t},"},
			{file: "pkg/doctor/rules/nics/nic.go", anchor: endOfRulesNIC},
			{file: "pkg/doctor/rules/nics/nic.go", anchor: "\"maps\"", text: "\n\"net/netip\""},
			{file: "pkg/doctor/fixtures_node_test.go", anchor: "missing: func(f *fact.Facts) { away(&nic(f, 3).MTU) },\n\t})"},
			{file: "integration/doctor/table_test.go", anchor: "found: map[string]string{\"POD-DOWN\": \"pod default/roce-1: net4\"},\n\t},"},
			{file: "integration/rig/tests/zdoctor_defects_test.go", anchor: endOfMTU},
			wants("12", "net1 has arp_ignore 0\"", "},\n\t},\n\t{\n\t\tname: \"filter"),
			wants("13", "for 10.79.0.1/16\"", "},\n\t},\n\t{\n\t\tname: \"NIC has"),
			wants("13", "for 10.79.0.1/16\"", "},\n\t},\n}"),
		},
		[]string{"./pkg/doctor", "./pkg/doctor/rules/nics", "./integration/doctor", "./integration/rig/tests"},
		"^(TestEachRuleHasItsFixtures|TestRulesAreComplete|TestFindingsOfANodeHaveDifferentParts)$",
	},
}

var goBlock = regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```$")

// A reader who follows the examples of CONTRIBUTING.md gets code that compiles, and a rule
// that passes its tests.
func TestExamplesOfCONTRIBUTINGCompile(t *testing.T) {
	t.Parallel()
	for _, g := range guides {
		t.Run(g.section, func(t *testing.T) {
			t.Parallel()
			changed := map[string]string{}
			blocks := goBlock.FindAllStringSubmatch(Section(t, "CONTRIBUTING.md", g.section), -1)
			for _, e := range g.edits {
				text := e.text
				if text == "" {
					if len(blocks) == 0 {
						t.Fatalf("there is no block left for %s", e.file)
					}
					text, blocks = "\n"+blocks[0][1], blocks[1:]
				}
				changed[e.file] = e.apply(t, changed[e.file], text)
			}
			if len(blocks) > 0 {
				t.Fatalf("this test does not know where the block belongs:\n%s", blocks[0][1])
			}
			g.test(t, changed)
		})
	}
}

// apply returns the file, of which before is the text after the edits so far, with text.
func (e edit) apply(t *testing.T, before, text string) string {
	t.Helper()
	if e.anchor == "" {
		return text // a new file
	}
	if before == "" {
		before = Page(t, e.file)
	}
	if strings.Count(before, e.anchor) != 1 {
		t.Fatalf("%s has %q %d times, want once", e.file, e.anchor, strings.Count(before, e.anchor))
	}
	if !e.replaces {
		text = e.anchor + text
	}
	return strings.Replace(before, e.anchor, text, 1)
}

// test compiles the packages and their tests with the changed files, and runs some of the tests.
func (g *guide) test(t *testing.T, changed map[string]string) {
	t.Helper()
	dir, top := t.TempDir(), root(t)
	replace := map[string]string{}
	for file, text := range changed {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(top, file)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	// Not go vet, which enters the directories of packages, also of one that is only here.
	run := func(args ...string) {
		cmd := exec.Command("go", args...)
		cmd.Dir = top
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	// It compiles the packages with their tests, and links nothing.
	run(append([]string{"list", "-test", "-export", "-tags", "rig", "-overlay", path}, g.packages...)...)
	if g.run != "" {
		run("test", "-vet=off", "-run", g.run, "-overlay", path, g.packages[0])
	}
}
