package kubeletdir

import (
	"context"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/rail-cni/rail-cni/pkg/resource"
)

// askTime bounds a call to another plugin.
const askTime = time.Second

// socketFile identifies a socket. A new socket at the same path has another socketFile.
type socketFile struct {
	path   string
	inode  Inode
	change int64 // the time when it was made, in nanoseconds
}

// other is what is known about a socket of another plugin.
type other struct {
	resource string // the resource that the plugin says it serves, "" if it names none
	devices  bool   // it is a device plugin
}

// Others finds other device plugins by their sockets. Its methods may be called concurrently.
type Others struct {
	dir   string
	mu    sync.Mutex
	known map[socketFile]*other
}

// NewOthers returns an Others of the kubelet with this root directory.
func NewOthers(kubeletDir string) *Others {
	return &Others{dir: kubeletDir, known: map[socketFile]*other{}}
}

// Serving returns the socket, below the kubelet's directory, of another device plugin that serves
// the resource. It returns "" if there is none. The kubelet would replace one plugin with the other
// without a message (pkg/kubelet/cm/devicemanager, PluginConnected).
//
// A plugin that uses the kubelet's registry names the resource that it serves. A plugin that
// registers itself does not. Such a plugin counts if its socket is named after the resource, like
// the sockets of k8s-rdma-shared-dev-plugin and sriov-network-device-plugin.
func (a *Others) Serving(ctx context.Context, name string) string {
	for _, dir := range []string{RegistryDir, PluginsDir} {
		entries, err := os.ReadDir(filepath.Join(a.dir, dir))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.Type()&os.ModeSocket == 0 || resource.IsOwnSocket(e.Name()) || e.Name() == filepath.Base(Socket) {
				continue
			}
			socket := filepath.Join(a.dir, dir, e.Name())
			switch o := a.ask(ctx, socket); {
			case o == nil: // nobody listens at the socket, or the process is too busy to answer
				if !namedAfter(e.Name(), name) {
					continue
				}
			case !o.devices || o.resource != name && (o.resource != "" || !namedAfter(e.Name(), name)):
				continue
			}
			if Answers(socket) {
				return path.Join(dir, e.Name())
			}
		}
	}
	return ""
}

// ask returns what the process at the socket is. It asks each process only once. It returns nil if
// nobody answers.
func (a *Others) ask(ctx context.Context, socket string) *other {
	var st unix.Stat_t
	if unix.Lstat(socket, &st) != nil {
		return nil
	}
	key := socketFile{socket, Inode{st.Dev, st.Ino}, st.Ctim.Nano()}
	a.mu.Lock()
	known := a.known[key]
	a.mu.Unlock()
	if known != nil || !Answers(socket) {
		return known
	}
	conn, err := Connect(socket)
	if err != nil {
		return nil
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	o := &other{}
	if info, err := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{}); err == nil {
		o.resource, o.devices = info.GetName(), info.GetType() == registration.DevicePlugin
	} else if o.devices, err = isDevicePlugin(ctx, conn); status.Code(err) == codes.Unavailable {
		return nil // too busy to connect
	}
	if ctx.Err() != nil {
		return nil // the process did not answer in time
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.known, func(k socketFile, _ *other) bool { return k.path == socket })
	a.known[key] = o
	return o
}

// isDevicePlugin reports whether the process is a device plugin. If it is not, err is the reason.
func isDevicePlugin(ctx context.Context, conn *grpc.ClientConn) (bool, error) {
	_, err := kubelet.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &kubelet.Empty{})
	return err == nil, err
}

// namedAfter reports whether the socket is named after the resource, with or without the prefix of
// the resource.
func namedAfter(socket, resource string) bool {
	name := strings.TrimSuffix(socket, filepath.Ext(socket))
	return name == path.Base(resource) || name == strings.ReplaceAll(resource, "/", "_") || name == strings.ReplaceAll(resource, "/", "-")
}

// Lister returns the socket, below the kubelet's directory, of a device plugin that does not name
// the resource that it serves but lists all these IDs. It returns "" if there is none.
func (a *Others) Lister(ctx context.Context, ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	entries, _ := os.ReadDir(filepath.Join(a.dir, PluginsDir)) // without the directory there are none
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 || resource.IsOwnSocket(e.Name()) || e.Name() == filepath.Base(Socket) {
			continue
		}
		socket := filepath.Join(a.dir, PluginsDir, e.Name())
		if o := a.ask(ctx, socket); o == nil || !o.devices || o.resource != "" {
			continue
		}
		listed, err := listOf(ctx, socket)
		if err == nil && !slices.ContainsFunc(ids, func(id string) bool { return !listed[id] }) {
			return path.Join(PluginsDir, e.Name())
		}
	}
	return ""
}

// listOf returns the IDs that the device plugin at the socket lists.
func listOf(ctx context.Context, socket string) (map[string]bool, error) {
	conn, err := Connect(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	stream, err := kubelet.NewDevicePluginClient(conn).ListAndWatch(ctx, &kubelet.Empty{})
	if err != nil {
		return nil, err
	}
	list, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, d := range list.GetDevices() {
		ids[d.GetID()] = true
	}
	return ids, nil
}
