package collect_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
)

// hung mounts a file system whose server never answers, as that of a network may, until the test
// ends.
func hung(t *testing.T) string {
	t.Helper()
	need.Root(t)
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := unix.Mount("hung", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Close() // all requests fail now
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestRunEndsThoughFilesHang(t *testing.T) {
	dir := hung(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ended := make(chan *doctor.Facts, 1)
	go func() {
		ended <- collect.Node(ctx, collect.Options{StateDir: filepath.Join(t.TempDir(), "none"), Root: dir, Sys: dir, Sample: -1})
	}()
	select {
	case f := <-ended:
		if f.Kubelet == nil || f.Kubelet.Foreign.OK() || f.Host.Modules.OK() || !f.Host.Kernel.OK() || !f.Ledger.Unreadable.OK() {
			t.Errorf("kubelet %+v, host %+v, ledger %+v", f.Kubelet, f.Host, f.Ledger)
		}
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
}
