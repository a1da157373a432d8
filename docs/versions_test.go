package docs

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var freeze = flag.String("freeze", "", "write the names of this version, such as v0.2.0, to testdata")

const versionsPage = "docs/reference/versions.md"

// commandAndFlags matches the help of a command on the command line's page, and flag a flag in it.
var (
	commandHelp = regexp.MustCompile("(?ms)^### (rail[a-z-]+(?: [a-z0-9-]+)*)\n\n```text\n(.*?)^```$")
	flagInHelp  = regexp.MustCompile(`(?m)^ +(?:-[a-z], |    )(--[a-z0-9-]+)`)
	ruleHeading = regexp.MustCompile(`(?m)^### ([A-Z][A-Z0-9-]+)$`)
)

// names returns what users may depend on, as the reference has it: each line is a kind and a
// name. Tests compare the reference with the code.
func names(t *testing.T) []string {
	t.Helper()
	var all []string
	add := func(words ...string) { all = append(all, strings.Join(words, " ")) }
	for _, section := range []string{"The agent", "RDMA counters", "Counters of mlx5"} {
		for _, row := range Rows(Section(t, "docs/reference/metrics.md", section)) {
			for _, metric := range Code(row[0]) {
				if section != "The agent" { // the meaning follows
					add("metric", metric)
					continue
				}
				add("metric", metric, row[1])
				for _, label := range Code(row[2]) {
					add("label", metric, label)
				}
			}
		}
	}
	for _, row := range Rows(Page(t, "docs/reference/events.md")) {
		add("Event", strings.Trim(row[0], "`"), row[1])
	}
	for _, row := range Rows(Page(t, "docs/reference/errors.md")) {
		add("error", row[0], row[1])
	}
	for _, row := range Rows(Section(t, "docs/reference/doctor-rules.md", "Exit codes")) {
		add("exit", strings.Trim(row[0], "`"))
	}
	for _, m := range ruleHeading.FindAllStringSubmatch(Page(t, "docs/reference/doctor-rules.md"), -1) {
		add("rule", m[1])
	}
	for _, of := range []struct{ kind, page, first string }{
		{"key", "docs/reference/keys.md", "Every plugin"},
		{"record", "docs/reference/record-format.md", "The attachment"},
		{"node-file", "docs/reference/node-file.md", "Rails"},
		{"rails.json", "docs/reference/rails-json.md", "The document"},
	} {
		_, text, found := strings.Cut(Page(t, of.page), "\n## "+of.first+"\n")
		if !found {
			t.Fatalf("%s has no section %q", of.page, of.first)
		}
		for i, section := range strings.Split(text, "\n## ") {
			heading, _, _ := strings.Cut(section, "\n")
			if i == 0 {
				heading = of.first
			}
			for _, row := range Rows(section) {
				for _, key := range Code(row[0]) {
					if of.kind == "key" || of.kind == "node-file" {
						key = "(" + heading + ") " + key
					}
					add(of.kind, key)
				}
			}
		}
	}
	for _, m := range commandHelp.FindAllStringSubmatch(Page(t, "docs/reference/cli.md"), -1) {
		add("command", m[1])
		for _, f := range flagInHelp.FindAllStringSubmatch(m[2], -1) {
			add("flag", m[1], f[1])
		}
	}
	var schema object
	if err := json.Unmarshal([]byte(Page(t, "deployments/helm/rail-cni/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	schema.values("", func(value string) { add("value", value) })
	slices.Sort(all)
	return slices.Compact(all)
}

// object is what names needs of a JSON schema.
type object struct {
	Properties map[string]object `json:"properties"`
}

// values calls do with each value of the chart that the schema has.
func (o object) values(prefix string, do func(value string)) {
	for name, of := range o.Properties {
		do(prefix + name)
		of.values(prefix+name+".", do)
	}
}

// TestNamesOfEachVersionAreKept compares the reference with the names of each version from
// v0.1.0 on. A name may go only if the page of versions says so.
func TestNamesOfEachVersionAreKept(t *testing.T) {
	have := names(t)
	counts := map[string]int{}
	for _, name := range have {
		kind, _, _ := strings.Cut(name, " ")
		counts[kind]++
	}
	for kind, least := range map[string]int{
		"metric": 60, "label": 40, "Event": 30, "error": 19, "exit": 3, "rule": 120, "key": 90, "record": 120, "node-file": 25,
		"rails.json": 30, "command": 30, "flag": 150, "value": 50,
	} {
		if counts[kind] < least {
			t.Errorf("the reference has %d names of the kind %q, at least %d are expected: has a page another form?", counts[kind], kind, least)
		}
	}
	if *freeze != "" {
		file := filepath.Join("testdata", *freeze, "names.txt")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.Join(have, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var removed []string
	for _, row := range Rows(Section(t, versionsPage, "Names that are gone")) {
		removed = append(removed, Code(row[0])...)
	}
	files, err := filepath.Glob(filepath.Join("testdata", "v*", "names.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no version has its names in testdata, %v", err)
	}
	for _, file := range files {
		version := filepath.Base(filepath.Dir(file))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.Lines(string(text)) {
			name = strings.TrimSpace(name)
			if _, found := slices.BinarySearch(have, name); !found && !slices.Contains(removed, name) {
				t.Errorf("%s has %q, and the reference no longer does. Users depend on it: keep the name beside a new one, and say in %s "+
					"that it is deprecated. A minor version may remove a name that was deprecated in the one before: then add it to the "+
					"table \"Names that are gone\" there, and an Action to CHANGELOG.md", version, name, versionsPage)
			}
		}
	}
}
