package bootmode

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/without"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

func TestChangeAtBootAlone(t *testing.T) {
	b := Boot{Root: t.TempDir()}
	if c := b.Change(rdma.Exclusive, true, false); c != (Change{AtBoot: true, Written: true}) {
		t.Errorf("%+v", c)
	}
	if boot, err := b.Read(); err != nil || boot.Mode != rdma.Exclusive {
		t.Errorf("the node boots with %q, %v", boot.Mode, err)
	}
}

func TestChangeWithoutRDMAIsDoneWithTheFile(t *testing.T) {
	need.Root(t)
	if !without.RDMA(t) { // with RDMA it is tested in integration/rig/tests
		return
	}
	b := Boot{Root: t.TempDir()}
	if c := b.Change(rdma.Exclusive, true, true); c != (Change{AtBoot: true, Written: true, NotLoaded: true}) {
		t.Errorf("%+v", c)
	}
	if c := b.Change(rdma.Shared, false, true); c.Now || c.NotLoaded || !errors.Is(c.NowErr, rdma.ErrNoRDMA) {
		t.Errorf("only now: %+v", c)
	}
	if boot, err := b.Read(); err != nil || boot.Mode != rdma.Exclusive {
		t.Errorf("the node boots with %q, %v", boot.Mode, err)
	}
}

func TestChangeThatIsNotWrittenDoesNotCountAsLoadedLater(t *testing.T) {
	need.Root(t)
	if !without.RDMA(t) {
		return
	}
	b := Boot{Root: t.TempDir()}
	dir := filepath.Join(b.Root, "etc/modprobe.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "zz.conf"), []byte("options ib_core netns_mode=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c := b.Change(rdma.Exclusive, true, true); c.AtBoot || c.AtBootErr == nil || c.NotLoaded || !errors.Is(c.NowErr, rdma.ErrNoRDMA) {
		t.Errorf("%+v", c)
	}
}
