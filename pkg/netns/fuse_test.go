package netns_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Opcodes of linux/fuse.h.
const (
	fuseLookup  = 1
	fuseForget  = 2
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRelease = 18
	fuseInit    = 26
)

// fuseFile is a file system with one file, of the kind that a pod can mount. Its server can be made
// to stop answering. fuseFile uses no os.File, because the runtime would ask the file system itself
// whether the file can be polled.
type fuseFile struct {
	dir    string
	inode  uint64 // attributes of the file
	device int
	held   int // the file, open
	silent atomic.Bool
	asked  atomic.Int64 // requests since it stopped answering
	end    atomic.Bool
	ended  chan struct{}
}

// newFUSE mounts the file system, and opens its file, which has the name netns.
func newFUSE(t *testing.T, inode uint64) *fuseFile {
	t.Helper()
	need.Root(t)
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("this kernel has no FUSE, which these tests need (modprobe fuse): %v", err)
	}
	f := &fuseFile{dir: t.TempDir(), inode: inode, device: device, held: -1, ended: make(chan struct{})}
	if err := unix.Mount("test", f.dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)); err != nil {
		t.Fatal(err)
	}
	go f.serve()
	t.Cleanup(func() {
		f.end.Store(true)
		<-f.ended
		// The end of the server ends everything that waits for it (fuse_abort_conn).
		_ = unix.Close(device)
		_ = unix.Close(f.held)
		_ = unix.Unmount(f.dir, unix.MNT_DETACH)
	})
	if f.held, err = unix.Open(filepath.Join(f.dir, "netns"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fuseFile) serve() {
	defer close(f.ended)
	request := make([]byte, 1<<17)
	for !f.end.Load() {
		fds := []unix.PollFd{{Fd: int32(f.device), Events: unix.POLLIN}}
		if ready, _ := unix.Poll(fds, 50); ready == 0 {
			continue
		}
		n, err := unix.Read(f.device, request)
		if err != nil {
			continue
		}
		if n < 40 { // struct fuse_in_header
			continue
		}
		opcode := binary.NativeEndian.Uint32(request[4:])
		if f.silent.Load() {
			f.asked.Add(1)
			continue
		}
		if opcode == fuseForget {
			continue
		}
		payload, errno := f.answer(opcode, binary.NativeEndian.Uint64(request[16:]))
		answer := binary.NativeEndian.AppendUint32(nil, uint32(16+len(payload)))
		answer = binary.NativeEndian.AppendUint32(answer, uint32(-int32(errno)))
		answer = append(answer, request[8:16]...) // unique
		_, _ = unix.Write(f.device, append(answer, payload...))
	}
}

func (f *fuseFile) answer(opcode uint32, node uint64) (payload []byte, errno unix.Errno) {
	attr := func(node uint64) []byte { // struct fuse_attr
		a := make([]byte, 88)
		binary.NativeEndian.PutUint64(a, node)
		mode := uint32(unix.S_IFDIR | 0o755)
		if node != 1 {
			binary.NativeEndian.PutUint64(a, f.inode)
			mode = unix.S_IFREG | 0o444
		}
		binary.NativeEndian.PutUint32(a[60:], mode)
		binary.NativeEndian.PutUint32(a[64:], 1)
		return a
	}
	switch opcode {
	case fuseInit:
		out := make([]byte, 64)
		binary.NativeEndian.PutUint32(out, 7)
		binary.NativeEndian.PutUint32(out[4:], 31)
		binary.NativeEndian.PutUint32(out[20:], 4096) // max_write
		return out, 0
	case fuseLookup: // struct fuse_entry_out; nothing is valid for any time
		out := make([]byte, 40)
		binary.NativeEndian.PutUint64(out, 2)
		return append(out, attr(2)...), 0
	case fuseGetattr:
		return append(make([]byte, 16), attr(node)...), 0
	case fuseOpen:
		return make([]byte, 16), 0
	case fuseRelease:
		return nil, 0
	}
	return nil, unix.ENOSYS
}

// A pod can mount a file system whose server does not answer, keep one of its files open, and
// choose the file's name and inode number. A process that requests the file's attributes sleeps in
// a state that no signal ends. The scan must not make such a request.
func TestScanAsksNoFileSystemOfAPod(t *testing.T) {
	id := netns.ID{Inode: 4026999999}
	f := newFUSE(t, id.Inode)
	f.silent.Store(true)
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.held)
	for name, look := range map[string]func() (*netns.Netns, error){
		"a scan": func() (*netns.Netns, error) { return netns.Scan(id) },
		"the path that a record has": func() (*netns.Netns, error) {
			return netns.Find(id, path)
		},
		"whether a namespace exists": func() (*netns.Netns, error) {
			if netns.Exists(netns.ID{Inode: id.Inode, Cookie: 4711}, path) {
				return nil, errors.New("the file passes for a namespace")
			}
			return nil, nil
		},
	} {
		done := make(chan error, 1)
		go func() {
			n, err := look()
			n.Close()
			if n != nil {
				err = errors.New("the file passes for a namespace")
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s hangs", name)
		}
		if asked := f.asked.Load(); asked > 0 {
			t.Errorf("%s asked the pod's file system %d times", name, asked)
		}
	}
}
