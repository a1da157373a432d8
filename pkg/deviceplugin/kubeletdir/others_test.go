package kubeletdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/scratch"
)

// full makes a socket at which a process listens that is too busy to accept a connection.
func full(t *testing.T, path string) {
	t.Helper()
	address := &unix.SockaddrUnix{Name: path}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	listener := socket()
	if err := errors.Join(unix.Bind(listener, address), unix.Listen(listener, 0)); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := unix.Connect(socket(), address); errors.Is(err, unix.EAGAIN) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the backlog is not full")
}

func TestPluginThatIsTooBusyToAcceptLives(t *testing.T) {
	dir := scratch.Dir(t)
	if err := os.Mkdir(filepath.Join(dir, PluginsDir), 0o750); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, PluginsDir, "rail.sock")
	full(t, socket)
	if !Answers(socket) {
		t.Error("it counts as dead")
	}
	a := NewOthers(dir)
	if who := a.Serving(t.Context(), "example.com/rail"); who != filepath.Join(PluginsDir, "rail.sock") {
		t.Errorf("its resource is served by %q", who)
	}
	if who := a.Serving(t.Context(), "example.com/other"); who != "" {
		t.Errorf("another resource is served by %q", who)
	}
	if len(a.known) > 0 {
		t.Errorf("it was asked what it is, and could not say: %v", a.known)
	}
}
