package fakekubelet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Kubelet is a kubelet that serves device plugins. Its methods may be called concurrently.
type Kubelet struct {
	deviceplugin.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer

	dir        string
	registered func(Registration)

	mu   sync.Mutex
	pid  int                            // of the process that connected last
	pods map[string]map[string][]string // IDs of devices by resource, by pod
}

// Registration is a call of a device plugin.
type Registration struct {
	Resource string
	PID      int // of the device plugin
	socket   string
}

// Connect returns a connection to the device plugin, which the caller must close.
func (r Registration) Connect() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Namespace is that of all pods.
const Namespace = "default"

// Start starts a kubelet with this root directory, of whose sockets the path may have 107
// bytes (unix(7)). Like the real one it removes the sockets of earlier device plugins, and
// not its checkpoint. It calls registered for each registration, before the device plugin
// has the answer: registered must not wait for the device plugin. It ends with the test.
func Start(t testing.TB, dir string, registered func(Registration)) *Kubelet {
	t.Helper()
	k := &Kubelet{dir: dir, registered: registered, pods: map[string]map[string][]string{}}
	server := grpc.NewServer()
	deviceplugin.RegisterRegistrationServer(server, k)
	podresources.RegisterPodResourcesListerServer(server, k)
	for _, name := range []string{"device-plugins", "pod-resources"} {
		listener, err := listen(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = server.Serve(peers{listener, k}) }() // until the server is stopped
	}
	t.Cleanup(server.Stop)
	return k
}

// listen makes the kubelet's socket in a directory, without other sockets there.
func listen(dir string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil {
		return nil, err
	}
	for _, socket := range sockets {
		if err := os.Remove(socket); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
}

// peers notes who connects.
type peers struct {
	net.Listener
	*Kubelet
}

func (p peers) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T is no connection of a unix socket", conn)
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return nil, err
	}
	_ = raw.Control(func(fd uintptr) { // without an answer it was killed already
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p.mu.Lock()
			p.pid = int(peer.Pid)
			p.mu.Unlock()
		}
	})
	return conn, nil
}

// Register implements [deviceplugin.RegistrationServer].
func (k *Kubelet) Register(_ context.Context, request *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
	k.mu.Lock()
	pid := k.pid
	k.mu.Unlock()
	k.registered(Registration{
		Resource: request.ResourceName, PID: pid, socket: filepath.Join(k.dir, "device-plugins", request.Endpoint),
	})
	return &deviceplugin.Empty{}, nil
}

// List implements [podresources.PodResourcesListerServer]. Each pod has one container.
func (k *Kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	answer := &podresources.ListPodResourcesResponse{}
	for pod, devices := range k.pods {
		container := &podresources.ContainerResources{Name: "c"}
		for resource, ids := range devices {
			container.Devices = append(container.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids})
		}
		answer.PodResources = append(answer.PodResources, &podresources.PodResources{
			Namespace: Namespace, Name: pod, Containers: []*podresources.ContainerResources{container},
		})
	}
	return answer, nil
}

// Give makes the devices, IDs by resource, those of a pod. The pod stays if it has none.
func (k *Kubelet) Give(pod string, devices map[string][]string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods[pod] = devices
}

// Forget removes a pod.
func (k *Kubelet) Forget(pod string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, pod)
}
