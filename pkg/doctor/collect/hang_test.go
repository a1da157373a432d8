package collect_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// hung mounts a file system until the test ends. Its server never answers, like the server of a
// network file system that has failed.
func hung(t *testing.T) string {
	t.Helper()
	dir, _ := hungFor(t, false)
	return dir
}

// hungFor mounts a file system whose server never answers a request for a file. If takes is true,
// the server reads such requests. Then the kernel does not let the requesting thread end, not even
// after SIGKILL, until let is called.
func hungFor(t *testing.T, takes bool) (dir string, let func()) {
	t.Helper()
	need.Root(t)
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := unix.Mount("hung", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())); err != nil {
		t.Fatal(err)
	}
	stop, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if takes {
			take(int(server.Fd()), int(stop.Fd()), dir+".taken")
		}
	}()
	let = sync.OnceFunc(func() {
		_ = write.Close()
		<-ended
		_ = stop.Close()
		_ = server.Close() // all requests fail now
	})
	t.Cleanup(func() {
		let()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, let
}

// taken returns the number of requests that the server of dir has taken and does not answer.
func taken(dir string) int64 {
	info, err := os.Stat(dir + ".taken")
	if err != nil {
		return 0
	}
	return info.Size()
}

// take is a FUSE server that answers only INIT (linux/fuse.h). It runs until stop is closed. For
// each request that it does not answer, it adds a byte to the file log.
func take(server, stop int, log string) {
	const inHeader, outHeader, initOut, opInit = 40, 16, 64, 26
	in := make([]byte, 1<<20)
	for {
		ready := []unix.PollFd{{Fd: int32(server), Events: unix.POLLIN}, {Fd: int32(stop), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) || ready[1].Revents != 0 {
			return
		}
		n, err := unix.Read(server, in)
		if err != nil || n < inHeader {
			continue
		}
		if binary.NativeEndian.Uint32(in[4:]) != opInit {
			if f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				_, _ = f.Write([]byte{1})
				_ = f.Close()
			}
			continue
		}
		out := make([]byte, outHeader+initOut)
		binary.NativeEndian.PutUint32(out, uint32(len(out)))
		copy(out[8:outHeader], in[8:16]) // the number of the request
		binary.NativeEndian.PutUint32(out[outHeader:], 7)
		binary.NativeEndian.PutUint32(out[outHeader+4:], 31)
		binary.NativeEndian.PutUint32(out[outHeader+20:], 4096) // max_write
		_, _ = unix.Write(server, out)
	}
}

// TestReaderOutlivesProcessesThatCannotBeKilled: one process that the kernel does not let end
// delays only one run for a moment. With two such processes, the facts in files of pods are missing
// until the processes can end, but no other facts.
func TestReaderOutlivesProcessesThatCannotBeKilled(t *testing.T) {
	dir, let := hungFor(t, true)
	l := newLab(t)
	r := readerOf(t, "stuck "+dir)
	read := func() (f *fact.Facts) {
		if err := l.node.Do(func() error { f = r.Node(t.Context(), collect.Options{StateDir: l.state, Sample: -1}); return nil }); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for n := range 3 {
		f := read()
		if !f.Host.Kernel.OK() || len(f.Pods) != 1 {
			t.Fatalf("run %d: %+v, %+v", n, f.Host, f.Pods)
		}
		p := f.Pods[0]
		if !p.Interfaces.OK() || strings.Contains(p.Containers.Error, "cannot be ended") != (n == 2) || n == 2 && p.GPUs.OK() {
			t.Errorf("run %d: %+v", n, p)
		}
		if n == 1 { // the third has nothing that hangs
			t.Setenv(behaves, "well")
		}
	}
	let()
	for began := time.Now(); strings.Contains(read().Pods[0].Containers.Error, "cannot be ended"); {
		if time.Since(began) > time.Minute {
			t.Fatal("the processes have ended, and pods are not read")
		}
	}
}

func TestRunEndsThoughFilesHang(t *testing.T) {
	dir := hung(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ended := make(chan *fact.Facts, 1)
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
