package nodefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
)

// nodeWithList makes the list of the node's agent, and returns the directory of the test.
func nodeWithList(t *testing.T, list *StateDirs) string {
	t.Helper()
	before := mainStateDir
	t.Cleanup(func() { mainStateDir = before })
	mainStateDir = t.TempDir()
	if list != nil {
		must(t, os.WriteFile(filepath.Join(mainStateDir, StateDirsFile), list.Text(), 0o600))
	}
	return mainStateDir
}

func TestOnANodeWithAnAgentOnlyWhatItKeepsIsOpen(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	must(t, os.Mkdir(kept, 0o700), os.Symlink(dir, filepath.Join(dir, "link")))
	list := &StateDirs{Kept: []string{DefaultStateDir, kept}, Former: []string{filepath.Join(dir, "former")}}
	nodeWithList(t, list)
	var inList *File
	all := &File{Paths: []string{"/**"}}
	for name, c := range map[string]struct {
		node *File
		path string
		want string // "" is open
	}{
		"the default":                   {inList, DefaultStateDir, ""},
		"a kept one":                    {inList, kept, ""},
		"a kept one by a link":          {inList, filepath.Join(dir, "link/kept"), ""},
		"one that was open before":      {inList, "/run/rail-cni-x", "is not kept by this node's rail-agent"},
		"a former one":                  {inList, filepath.Join(dir, "former"), "is not kept"},
		"the publisher's":               {inList, DefaultStateDir + "/pods", "is in the state directory " + DefaultStateDir},
		"one in a kept one":             {inList, kept + "/a/b", "is in the state directory " + kept},
		"one in a kept one by a link":   {inList, filepath.Join(dir, "link/kept/a"), "is in the state directory " + kept},
		"by ..":                         {inList, kept + "/../kept", "not open"},
		"with paths":                    {all, "/run/rail-cni-x", ""},
		"the publisher's, with paths":   {all, DefaultStateDir + "/pods", "is in the state directory"},
		"one in a kept one, with paths": {all, kept + "/a", "is in the state directory"},
		"not in paths":                  {&File{Paths: []string{}}, kept, "not open"},
	} {
		err := c.node.CheckPath(KeyStateDir, c.path)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestVarRunIsRun(t *testing.T) {
	need.Root(t)
	if target, err := os.Readlink("/var/run"); err != nil || RealStateDir("/var/run/rail-cni/x") != RealStateDir("/run/rail-cni/x") {
		t.Fatalf("/var/run is %q, %v: %s", target, err, RealStateDir("/var/run/rail-cni/x"))
	}
	nodeWithList(t, &StateDirs{Kept: []string{"/run/rail-cni-b"}})
	var none *File
	if err := none.CheckPath(KeyStateDir, "/var/run/rail-cni-b"); err != nil {
		t.Error(err)
	}
	if err := none.CheckPath(KeyStateDir, "/var/run/rail-cni/pods"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A network may not go on without the list: the directory may be nobody's.
func TestADamagedListOfStateDirectoriesIsAnErrorWithItsCure(t *testing.T) {
	main := nodeWithList(t, nil)
	must(t, os.WriteFile(filepath.Join(main, StateDirsFile), []byte("{"), 0o600))
	var none *File
	if err := none.CheckPath(KeyStateDir, "/run/rail-cni-x"); err == nil || !strings.Contains(err.Error(), "rail-agent writes it again") || !strings.Contains(err.Error(), main) {
		t.Error(err)
	}
	for _, always := range []string{"", DefaultStateDir} { // without reading it
		if err := none.CheckPath(KeyStateDir, always); err != nil {
			t.Error(err)
		}
	}
}

// What an ADD before a change of the settings has made must be ended by its DEL.
func TestEndingOpensStateDirectoriesThatWereOpen(t *testing.T) {
	dir := t.TempDir()
	former, kept, unused, evil := filepath.Join(dir, "former"), filepath.Join(dir, "kept"), filepath.Join(dir, "unused"), filepath.Join(dir, "evil")
	for _, in := range []string{former + "/attachments", kept + "/tenant/ipam", unused, evil + "/attachments"} {
		must(t, os.MkdirAll(in, 0o700))
	}
	nodeWithList(t, &StateDirs{Kept: []string{kept}, Former: []string{former, unused}})
	var none *File
	all := &File{Paths: []string{"/**"}}
	for name, c := range map[string]struct {
		node *File
		path string
		open bool
	}{
		"a former one":                      {none, former, true},
		"a former one without attachments":  {none, unused, false},
		"one that was never open":           {none, evil, false},
		"in a kept one, which paths opened": {all, kept + "/tenant", true},
		"a former one, not in paths":        {&File{Paths: []string{}}, former, true},
		"by ..":                             {none, evil + "/../former", false},
	} {
		if err := c.node.Ending().CheckPath(KeyStateDir, c.path); (err == nil) != c.open {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := none.CheckPath(KeyStateDir, former); !errors.Is(err, ErrClosed) {
		t.Errorf("ADD: %v", err)
	}
	nodeWithList(t, nil)
	if err := none.Ending().CheckPath(KeyStateDir, former); !errors.Is(err, ErrClosed) {
		t.Errorf("without a list: %v", err)
	}
}
