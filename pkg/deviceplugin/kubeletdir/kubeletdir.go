package kubeletdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// The kubelet's directories and files below its root directory.
const (
	PluginsDir      = "device-plugins"
	RegistryDir     = "plugins_registry"
	Socket          = PluginsDir + "/kubelet.sock" // of registrations
	CheckpointFile  = PluginsDir + "/kubelet_internal_checkpoint"
	ResourcesSocket = "pod-resources/kubelet.sock"
)

// inDir calls f with a short path of the directory: the path of a socket may have at most 107 bytes
// (unix(7)), and the path of a directory may be longer.
func inDir(dir string, f func(short string) error) error {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d", d.Fd()))
}

// Listen makes a socket. It removes what is at the path: the caller has checked that nobody listens
// there. Closing the listener does not remove the socket.
func Listen(path string) (*net.UnixListener, error) {
	var listener *net.UnixListener
	err := inDir(filepath.Dir(path), func(dir string) error {
		name := filepath.Join(dir, filepath.Base(path))
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var err error
		if listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}); err != nil {
			return err
		}
		listener.SetUnlinkOnClose(false)
		return os.Chmod(name, 0o600)
	})
	if err != nil && listener != nil {
		_ = listener.Close()
	}
	return listener, err
}

// Connect returns a connection to a socket. The connection is made when it is first used, and again
// when the other side was restarted.
func Connect(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+filepath.Base(path), append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(), // the service config of the resolver
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}, MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (conn net.Conn, err error) {
			err = inDir(filepath.Dir(path), func(dir string) error {
				conn, err = (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, filepath.Base(path)))
				return err
			})
			return conn, err
		}))...)
}

// Answers reports whether a process listens at the socket. A socket whose backlog is full counts as
// answered (unix(7), EAGAIN).
func Answers(path string) bool {
	err := inDir(filepath.Dir(path), func(dir string) error {
		conn, err := net.Dial("unix", filepath.Join(dir, filepath.Base(path)))
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return err == nil || errors.Is(err, unix.EAGAIN)
}

// Inode identifies a file. It distinguishes a socket from an earlier socket with the same path that
// was removed.
type Inode struct{ dev, ino uint64 }

// InodeOf returns the inode of a path, or the zero value if the path does not exist.
func InodeOf(path string) Inode {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return Inode{}
	}
	return Inode{st.Dev, st.Ino}
}
