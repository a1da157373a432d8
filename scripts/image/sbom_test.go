package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// builtPrograms copies two of the project's programs to the directories that
// are packed.
func builtPrograms(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "amd64")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rail-agent", "macvlan"} {
		text, err := os.ReadFile(filepath.Join(testnet.Bin(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSBOMNamesWhatEachProgramIsLinkedFrom(t *testing.T) {
	dir := builtPrograms(t)
	image := "sha256:" + strings.Repeat("5a", 32)
	sbom := func() []byte {
		t.Helper()
		out := filepath.Join(t.TempDir(), "x.spdx.json")
		if err := writeSBOM(out, "localhost/rail-cni", "v1", image, []string{dir}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	text := sbom()
	if !bytes.Equal(text, sbom()) {
		t.Error("the same programs have two bills")
	}
	var have spdx
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&have); err != nil {
		t.Fatal(err)
	}
	if have.Version != "SPDX-2.3" || have.License != "CC0-1.0" || have.Creation.Created != "1970-01-01T00:00:00Z" || !strings.HasSuffix(have.Namespace, strings.Repeat("5a", 32)) {
		t.Errorf("%+v", have)
	}
	ids, names := map[string]bool{have.ID: true}, map[string]string{}
	for _, p := range have.Packages {
		if ids[p.ID] || p.Location == "" || p.Copyright == "" {
			t.Errorf("%+v", p)
		}
		ids[p.ID], names[p.Name] = true, p.ID
	}
	var agent, plugin []string // the modules that they are linked with
	for _, r := range have.Relationships {
		if !ids[r.Element] || !ids[r.To] {
			t.Errorf("%+v leads nowhere", r)
		}
		switch {
		case r.Type == "DEPENDS_ON" && r.Element == names["rail-agent (amd64)"]:
			agent = append(agent, r.To)
		case r.Type == "DEPENDS_ON" && r.Element == names["macvlan (amd64)"]:
			plugin = append(plugin, r.To)
		}
	}
	for _, module := range []string{"stdlib", "github.com/vishvananda/netlink"} {
		if !slices.Contains(agent, names[module]) || !slices.Contains(plugin, names[module]) {
			t.Errorf("%s is not in both: %v, %v", module, agent, plugin)
		}
	}
	if !slices.Contains(agent, names["k8s.io/client-go"]) || slices.Contains(plugin, names["k8s.io/client-go"]) {
		t.Errorf("who has client-go? %v, %v", agent, plugin)
	}
	// The tests' own build has the same modules, by the same checksums.
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if id := names[m.Path]; id != "" && m.Replace == nil && !bytes.Contains(text, []byte("go.sum "+m.Sum)) {
			t.Errorf("%s has another checksum than %s", m.Path, m.Sum)
		}
	}
}

func TestSBOMOfWhatIsNoGoProgramIsAnError(t *testing.T) {
	if err := writeSBOM(filepath.Join(t.TempDir(), "x"), "x", "v1", "sha256:0", programs(t)); err == nil {
		t.Error("there is one")
	}
}
