//go:build rig

package tests

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// configfs is the settings of RDMA-CM for one device, as cma_roce_tos sees them.
type configfs struct {
	t   *testing.T
	dir string
}

func newConfigfs(t *testing.T, device string) configfs {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("none", root, "configfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, 0) })
	return configfs{t, filepath.Join(root, "rdma_cm", device)}
}

// with calls f with the directory of the device's first port.
func (c configfs) with(f func(port string) error) {
	c.t.Helper()
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := f(filepath.Join(c.dir, "ports", "1")); err != nil {
		c.t.Error(err)
	}
	if err := os.Remove(c.dir); err != nil {
		c.t.Fatal(err)
	}
}

func (c configfs) set(file, value string) {
	c.t.Helper()
	c.with(func(port string) error { return os.WriteFile(filepath.Join(port, file), []byte(value), 0) })
}

func (c configfs) want(when, tos, mode string) {
	c.t.Helper()
	c.with(func(port string) error {
		for file, want := range map[string]string{"default_roce_tos": tos, "default_roce_mode": mode} {
			text, err := os.ReadFile(filepath.Join(port, file))
			if err != nil {
				return err
			}
			if have := strings.TrimSpace(string(text)); have != want {
				c.t.Errorf("%s: %s is %q, want %q", when, file, have, want)
			}
		}
		return nil
	})
}

// Without the type of service of the lossless traffic class, packets of the pod's
// connections would be dropped under load, and after the pod those of the host's.
func TestSettingsOfRDMACMSurviveTheMoves(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	cm := newConfigfs(t, "mlx5_0")
	cm.set("default_roce_tos", "106")
	cm.set("default_roce_mode", "IB/RoCE v1")
	before, p := n.State(), n.pod("pod1")
	for _, c := range []struct {
		name, tos string
		more      map[string]any
	}{
		{"as on the host", "106", nil},
		{"of the network", "96", map[string]any{"roceTos": 96}},
		{"none", "0", map[string]any{"roceTos": 0}},
	} {
		config := n.config(0, c.more)
		n.MustRun(p.call("ADD", "net1", config))
		cm.want(c.name+", in the pod", c.tos, "IB/RoCE v1")
		// For a device that its driver makes anew.
		if got := n.records()[0].RDMA.RoCETOS; (got != nil) != (c.more != nil) || got != nil && strconv.Itoa(*got) != c.tos {
			t.Errorf("%s: the record has %v", c.name, got)
		}
		n.MustRun(p.call("DEL", "net1", config))
		cm.want(c.name+", on the host again", "106", "IB/RoCE v1")
		n.untouched(before)
	}
	n.MustRun(p.call("ADD", "net1", n.config(0, nil)))
	p.Delete()
	n.gc()
	cm.want("after the pod's death", "106", "IB/RoCE v1")
	n.untouched(before)
}

func TestChainedRDMAKeepsTheSettingsOfRDMACM(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	cm := newConfigfs(t, "mlx5_0")
	cm.set("default_roce_tos", "106")
	c.peerNIC = true
	c.add()
	cm.want("in the pod", "106", "RoCE v2")
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
	cm.want("on the host again", "106", "RoCE v2")
}

func TestTypeOfServiceIsRefusedInSharedMode(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(1)
	before := n.State()
	_, err := n.Run(n.pod("pod1").call("ADD", "net1", n.config(0, map[string]any{"roceTos": 106})))
	refused(t, err, cnierr.NotAvailable, `"roceTos"`, "shared mode", "cma_roce_tos")
	n.untouched(before)
}
