package nodefile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestPoolsOfTheFilesThatTheNodeFileNames(t *testing.T) {
	dir := t.TempDir()
	shared, sriov := filepath.Join(dir, "rdma.json"), filepath.Join(dir, "sriov.json")
	for name, text := range map[string]string{
		shared: `{"configList":[{"resourceName":"hca","rdmaHcaMax":8,"devices":["ens11np0"]}]}`,
		sriov:  `{"resourceList":[{"resourceName":"vf","selectors":{"pfNames":["ens11np0"]}}]}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, err := Read(nodeFile(t, fmt.Sprintf("resources: {pools: [{name: a/b, mode: perRail, select: {rails: all}}], sharedConfigFile: %s, sriovConfigFile: %s, cdi: true}", shared, sriov)))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the node file's own pools stay as they are
		c, err := n.ReadResources()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range c.PoolConfigs {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != "a/b rdma/hca intel.com/vf" || !c.CDI || len(c.Warnings) != 1 {
			t.Errorf("%s, %+v", got, c)
		}
	}
	if len(n.Resources.PoolConfigs) != 1 {
		t.Errorf("%+v", n.Resources)
	}
	n, err = Parse([]byte("resources: {sriovConfigFile: " + sriov + "}"))
	must(t, err)
	if c, err := n.ReadResources(); err != nil || len(c.PoolConfigs) != 1 {
		t.Errorf("one file only: %+v, %v", c, err)
	}
}

func TestWithoutTheKeyThereAreNoResources(t *testing.T) {
	for _, n := range []*File{nil, {}} {
		if c, err := n.ReadResources(); c != nil || err != nil {
			t.Error(c, err)
		}
	}
}

// ADDs read the node file, and must not fail because of a file of the device plugin.
func TestAFileOfPoolsThatCannotBeReadIsAnErrorOfTheDevicePluginOnly(t *testing.T) {
	const shared = `{"configList":[{"resourceName":"a","devices":["x"]}]}`
	write := func(text string, mode os.FileMode) func(string) error {
		return func(name string) error {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				return err
			}
			return os.Chmod(name, mode)
		}
	}
	for name, c := range map[string]struct {
		plant func(name string) error
		want  string
	}{
		"missing":         {func(string) error { return nil }, "no such file"},
		"a FIFO":          {func(name string) error { return syscall.Mkfifo(name, 0o600) }, "not a regular file"},
		"a directory":     {func(name string) error { return os.Mkdir(name, 0o700) }, "not a regular file"},
		"writable by all": {write(shared, 0o666), "users other than the one who runs this program"},
		"large":           {write(strings.Repeat(" ", maxFile+1), 0o600), "larger than"},
		"no JSON":         {write("configList: []", 0o600), "not a JSON object"},
		"a name twice":    {write(`{"configList":[{"resourceName":"b","resourcePrefix":"a","devices":["x"]}]}`, 0o600), "two pools have the resource a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			if err := c.plant(file); err != nil {
				t.Fatal(err)
			}
			n, err := Read(nodeFile(t, "resources: {pools: [{name: a/b, mode: exclusive, select: {rdma: true}}], sharedConfigFile: "+file+"}"))
			if err != nil || !n.OpensNIC([]string{"eth0"}, "", "") {
				t.Fatal(err)
			}
			config, err := n.ReadResources()
			if config != nil || failure.KindOf(err) != failure.InvalidConfig {
				t.Fatal(config, err)
			}
			for _, want := range []string{c.want, file, n.Path, "resources.sharedConfigFile", "correct that file"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %v", want, err)
				}
			}
		})
	}
}
