package deviceplugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	n := newNode(t, "")
	socket := filepath.Join(n.dir, pluginsDir, "rail.sock")
	full(t, socket)
	if !answers(socket) {
		t.Error("it counts as dead")
	}
	p := New(n.options)
	if who := p.foreign(t.Context(), "example.com/rail"); who != filepath.Join(pluginsDir, "rail.sock") {
		t.Errorf("its resource is served by %q", who)
	}
	if who := p.foreign(t.Context(), "example.com/other"); who != "" {
		t.Errorf("another resource is served by %q", who)
	}
	if len(p.others) > 0 {
		t.Errorf("it was asked what it is, and could not say: %v", p.others)
	}
}

// A node with many pods and devices has more than the 4 MiB that gRPC accepts.
func TestLargeListsOfPodsAreRead(t *testing.T) {
	n := newNode(t, "")
	n.start()
	const pods = 60
	for i := range pods {
		var ids []string
		for j := range 1000 {
			ids = append(ids, fmt.Sprintf("%0100d", j))
		}
		n.give(fmt.Sprint("pod", i), map[string][]string{"example.com/rail": ids})
	}
	p := New(n.options)
	defer p.disconnect()
	list, err := p.containers(t.Context())
	// On a busy machine the fake kubelet takes longer to answer than a kubelet may take.
	for end := time.Now().Add(time.Minute); status.Code(err) == codes.DeadlineExceeded && time.Now().Before(end); {
		list, err = p.containers(t.Context())
	}
	if err != nil || len(list) != pods {
		t.Errorf("%d containers, %v", len(list), err)
	}
}
