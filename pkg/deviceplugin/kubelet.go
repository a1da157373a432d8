package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The kubelet's directories and files below its root directory.
const (
	pluginsDir      = "device-plugins"
	registryDir     = "plugins_registry"
	kubeletSocket   = pluginsDir + "/kubelet.sock"
	checkpointFile  = pluginsDir + "/kubelet_internal_checkpoint"
	resourcesSocket = "pod-resources/kubelet.sock"
)

// maxCheckpoint bounds how much of the kubelet's file is read.
const maxCheckpoint = 16 << 20

// retryLists is a service config of gRPC that repeats a call of PodResources if the kubelet refuses
// it. The kubelet permits 100 calls a second, and 10 at once, for all clients together (DefaultQPS
// and DefaultBurstTokens in pkg/kubelet/apis/podresources). So other clients can cause a refusal.
// All pauses together take 150 ms.
const retryLists = `{"methodConfig": [{
	"name": [{"service": "v1.PodResourcesLister"}],
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.08s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]
	}
}]}`

// maxList bounds an answer of PodResources, in bytes. The kubelet's own client has the same bound
// (DefaultPodResourcesMaxSize in pkg/kubelet/apis/podresources). The 4 MiB of gRPC are too few for
// a node with many pods and devices.
const maxList = 16 << 20

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

// listen makes a socket. It replaces a socket at which nobody listens. Closing the listener does
// not remove the socket.
func listen(path string) (*net.UnixListener, error) {
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

// connect returns a connection to a socket. The connection is made when it is first used, and again
// when the other side was restarted.
func connect(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
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

// answers reports whether a process listens at the socket. A socket whose backlog is full counts as
// answered (unix(7), EAGAIN).
func answers(path string) bool {
	err := inDir(filepath.Dir(path), func(dir string) error {
		conn, err := net.Dial("unix", filepath.Join(dir, filepath.Base(path)))
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return err == nil || errors.Is(err, unix.EAGAIN)
}

// inode identifies a file. It distinguishes a socket from an earlier socket with the same path that
// was removed.
type inode struct{ dev, ino uint64 }

// inodeOf returns the inode of a path, or the zero value if the path does not exist.
func inodeOf(path string) inode {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return inode{}
	}
	return inode{st.Dev, st.Ino}
}

// container has the devices that the kubelet has given to a container.
type container struct {
	namespace, pod, name string
	devices              map[string][]string // IDs by resource, sorted
}

// podContainers returns what the kubelet has given to containers (PodResources, List). The result
// has a pod that is being admitted, with the devices that it has got so far. It does not have init
// containers that end.
func podContainers(ctx context.Context, conn *grpc.ClientConn) ([]container, error) {
	answer, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("the kubelet's PodResources: %w", err)
	}
	var list []container
	for _, pod := range answer.GetPodResources() {
		for _, c := range pod.GetContainers() {
			found := container{namespace: pod.GetNamespace(), pod: pod.GetName(), name: c.GetName(), devices: map[string][]string{}}
			for _, d := range c.GetDevices() {
				name := d.GetResourceName()
				found.devices[name] = append(found.devices[name], d.GetDeviceIds()...)
			}
			for _, ids := range found.devices {
				slices.Sort(ids)
			}
			list = append(list, found)
		}
	}
	return list, nil
}

// checkpoint is the content of the kubelet's file about devices. The kubelet writes the file at the
// end of each container's allocation, and after each list of devices.
type checkpoint struct {
	// containers have no namespace and no pod name, because the file has only UIDs.
	containers []container
	registered map[string][]string // IDs of healthy devices by resource
}

// readCheckpoint reads the file. It returns an error if there is no file: the kubelet makes the
// file with the first list of devices.
func readCheckpoint(kubeletDir string) (*checkpoint, error) {
	f, err := os.Open(filepath.Join(kubeletDir, checkpointFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string // by NUMA node
			}
			RegisteredDevices map[string][]string
		}
	}
	if err := json.NewDecoder(io.LimitReader(f, maxCheckpoint)).Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	c := &checkpoint{registered: file.Data.RegisteredDevices}
	place := map[[2]string]int{}
	for _, e := range file.Data.PodDeviceEntries {
		key := [2]string{e.PodUID, e.ContainerName}
		i, known := place[key]
		if !known {
			i = len(c.containers)
			place[key] = i
			c.containers = append(c.containers, container{name: e.ContainerName, devices: map[string][]string{}})
		}
		for _, ids := range e.DeviceIDs {
			for _, id := range ids {
				// A device of several NUMA nodes is listed below each.
				if have := c.containers[i].devices[e.ResourceName]; !slices.Contains(have, id) {
					c.containers[i].devices[e.ResourceName] = append(have, id)
				}
			}
		}
	}
	for i := range c.containers {
		for _, ids := range c.containers[i].devices {
			slices.Sort(ids)
		}
	}
	return c, nil
}
