package deviceplugin

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
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
	inode  inode
	change int64 // the time when it was made, in nanoseconds
}

// other is what is known about a socket of another plugin.
type other struct {
	resource string // the resource that the plugin says it serves, "" if it names none
	devices  bool   // it is a device plugin
}

// foreign returns the socket, below the kubelet's directory, of another device plugin that serves
// the resource. It returns "" if there is none. The kubelet would replace one plugin with the other
// without a message (pkg/kubelet/cm/devicemanager, PluginConnected).
//
// A plugin that uses the kubelet's registry names the resource that it serves. A plugin that
// registers itself does not. Such a plugin counts if its socket is named after the resource, like
// the sockets of k8s-rdma-shared-dev-plugin and sriov-network-device-plugin.
func (p *Plugin) foreign(ctx context.Context, name string) string {
	for _, dir := range []string{registryDir, pluginsDir} {
		entries, err := os.ReadDir(filepath.Join(p.KubeletDir, dir))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.Type()&os.ModeSocket == 0 || resource.IsOwnSocket(e.Name()) || e.Name() == filepath.Base(kubeletSocket) {
				continue
			}
			socket := filepath.Join(p.KubeletDir, dir, e.Name())
			switch o := p.ask(ctx, socket); {
			case o == nil: // nobody listens at the socket, or the process is too busy to answer
				if !namedAfter(e.Name(), name) {
					continue
				}
			case !o.devices || o.resource != name && (o.resource != "" || !namedAfter(e.Name(), name)):
				continue
			}
			if answers(socket) {
				return path.Join(dir, e.Name())
			}
		}
	}
	return ""
}

// ask returns what the process at the socket is. It asks each process only once. It returns nil if
// nobody answers.
func (p *Plugin) ask(ctx context.Context, socket string) *other {
	var st unix.Stat_t
	if unix.Lstat(socket, &st) != nil {
		return nil
	}
	key := socketFile{socket, inode{st.Dev, st.Ino}, st.Ctim.Nano()}
	p.mu.Lock()
	known := p.others[key]
	p.mu.Unlock()
	if known != nil || !answers(socket) {
		return known
	}
	conn, err := connect(socket)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.others, func(k socketFile, _ *other) bool { return k.path == socket })
	p.others[key] = o
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

// replaced returns IDs that another device plugin has listed for this resource since the resource
// was registered: the IDs that are in the checkpoint, but in none of the lists that this process
// has sent.
func replaced(saved *checkpoint, resource string, sent map[string]bool) []string {
	if len(sent) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(saved.registered[resource]), func(id string) bool { return sent[id] })
}

// lister returns the socket, below the kubelet's directory, of a device plugin that does not name
// the resource that it serves but lists all these IDs. It returns "" if there is none.
func (p *Plugin) lister(ctx context.Context, ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	entries, _ := os.ReadDir(filepath.Join(p.KubeletDir, pluginsDir)) // without the directory there are none
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 || resource.IsOwnSocket(e.Name()) || e.Name() == filepath.Base(kubeletSocket) {
			continue
		}
		socket := filepath.Join(p.KubeletDir, pluginsDir, e.Name())
		if o := p.ask(ctx, socket); o == nil || !o.devices || o.resource != "" {
			continue
		}
		listed, err := listOf(ctx, socket)
		if err == nil && !slices.ContainsFunc(ids, func(id string) bool { return !listed[id] }) {
			return path.Join(pluginsDir, e.Name())
		}
	}
	return ""
}

// listOf returns the IDs that the device plugin at the socket lists.
func listOf(ctx context.Context, socket string) (map[string]bool, error) {
	conn, err := connect(socket)
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

// takenMessage returns a message for a person: who serves the resource, and what to do.
func takenMessage(resource, who string) string {
	return fmt.Sprintf(`%s is served by another device plugin, %s, so rail-agent does not register the resource. "railctl migrate devices" prints how to move to rail-agent: `+
		"apply what it prints and remove the other device plugin. Then rail-agent registers the resource within a minute", resource, who)
}
