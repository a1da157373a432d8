//go:build rig

package rdma

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
)

func TestRigDeviceThatIsGoneIsNotFound(t *testing.T) {
	r := inRig(t, Exclusive)
	_, pod := r.pod("pod")
	d := r.devs[0]
	calls := map[string]func(c *Core) error{
		"ByIndex":   func(c *Core) error { _, err := c.ByIndex(d.Index); return err },
		"ByName":    func(c *Core) error { _, err := c.ByName(d.Name); return err },
		"Port":      func(c *Core) error { _, err := c.Port(d, 1); return err },
		"Ports":     func(c *Core) error { _, err := c.Ports(d); return err },
		"GIDs":      func(c *Core) error { _, err := c.GIDs(d, 1); return err },
		"FindGID":   func(c *Core) error { _, err := c.FindGID(d, 1, netip.MustParseAddr("10.9.9.9"), "net1"); return err },
		"WatchGIDs": func(c *Core) error { _, err := c.WatchGIDs(d, 1); return err },
		"Uverbs":    func(c *Core) error { _, err := c.Uverbs(d); return err },
		"Users":     func(c *Core) error { _, err := c.Users(d); return err },
		"Counters":  func(c *Core) error { _, err := c.Counters(d, 1); return err },
	}
	for name, do := range calls {
		if err := do(r.host); errors.Is(err, ErrNotFound) {
			t.Errorf("it is there, %s: %v", name, err)
		}
	}
	_, err := r.host.Move(r.soon(), d, pod)
	must(t, err)
	calls["Rename"] = func(c *Core) error { return c.Rename(d, "mlx5_77") }
	for name, do := range calls {
		if err := do(r.host); !errors.Is(err, ErrNotFound) {
			t.Errorf("it has left, %s: %v", name, err)
		}
	}
}

func TestRigReadsDuringMovesFailOnlyIfItIsGone(t *testing.T) {
	r := inRig(t, Exclusive)
	_, pod := r.pod("pod")
	d, reader := r.devs[0], r.apart(r.ns)
	var over atomic.Bool
	go func() {
		defer over.Store(true)
		for range 50 {
			for _, way := range [][2]*Core{{r.host, pod}, {pod, r.host}} {
				if _, err := way[0].Move(r.soon(), d, way[1]); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	found, gone := 0, 0
	for !over.Load() {
		_, portErr := reader.Port(d, 1)
		_, tableErr := reader.GIDs(d, 1)
		_, usersErr := reader.Users(d)
		for what, err := range map[string]error{"port": portErr, "GIDs": tableErr, "users": usersErr} {
			switch {
			case err == nil:
				found++
			case errors.Is(err, ErrNotFound):
				gone++
			default:
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	t.Logf("%d reads found it, %d did not", found, gone)
	if found == 0 || gone == 0 {
		t.Errorf("%d reads found it, %d did not", found, gone)
	}
}
