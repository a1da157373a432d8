package crash

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet plays the kubelet's part for a device plugin that is killed: it accepts its
// registration, allocates two of its devices to a container, ends the container, and then
// asks the device plugin to end. The real one is in integration/devices: with it each
// point would take seconds.
type kubelet struct {
	deviceplugin.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer

	t    *testing.T
	dir  string     // its root directory
	once chan error // gets the outcome of each registration's scenario

	scenarios sync.WaitGroup

	mu      sync.Mutex
	quiet   bool                // it only watches
	pid     int                 // of the process that connected last
	devices map[string][]string // of the container, by resource
}

const deviceResource, deviceCount = "rdma/killed", 8

// newKubelet starts a kubelet that ends with the test.
func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") // that of the test is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	k := &kubelet{t: t, dir: dir, once: make(chan error, 100), devices: map[string][]string{}}
	server := grpc.NewServer()
	deviceplugin.RegisterRegistrationServer(server, k)
	podresources.RegisterPodResourcesListerServer(server, k)
	for _, dir := range []string{"device-plugins", "pod-resources"} {
		if err := os.Mkdir(filepath.Join(k.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", filepath.Join(k.dir, dir, "kubelet.sock"))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = server.Serve(peers{listener, k}) }() // until the server is stopped
	}
	t.Cleanup(server.Stop)
	return k
}

// peers notes who connects.
type peers struct {
	net.Listener
	*kubelet
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
func (k *kubelet) Register(_ context.Context, request *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
	k.mu.Lock()
	pid := k.pid
	k.mu.Unlock()
	k.scenarios.Go(func() { k.once <- k.scenario(filepath.Join(k.dir, "device-plugins", request.Endpoint), pid) })
	return &deviceplugin.Empty{}, nil
}

// List implements [podresources.PodResourcesListerServer]. One container has all devices.
func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	container := &podresources.ContainerResources{Name: "c"}
	for resource, ids := range k.devices {
		container.Devices = append(container.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids})
	}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Namespace: "default", Name: "p", Containers: []*podresources.ContainerResources{container}},
	}}, nil
}

// give makes the devices those of the container.
func (k *kubelet) give(ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.devices = map[string][]string{deviceResource: ids}
}

// watchOnly makes it watch device plugins and not use them, from now on.
func (k *kubelet) watchOnly() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.quiet = true
}

// scenario uses the device plugin of a process once, and asks it to end.
func (k *kubelet) scenario(socket string, pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	plugin := deviceplugin.NewDevicePluginClient(conn)
	if _, err := plugin.GetDevicePluginOptions(ctx, &deviceplugin.Empty{}); err != nil {
		return err
	}
	stream, err := plugin.ListAndWatch(ctx, &deviceplugin.Empty{})
	if err != nil {
		return err
	}
	list, err := stream.Recv()
	if err != nil {
		return err
	}
	var healthy []string
	for _, d := range list.Devices {
		if d.Health == deviceplugin.Healthy {
			healthy = append(healthy, d.ID)
		}
	}
	slices.Sort(healthy)
	if len(healthy) != deviceCount {
		return fmt.Errorf("the device plugin has %d healthy devices, not %d: %v", len(healthy), deviceCount, list.Devices)
	}
	k.mu.Lock()
	quiet := k.quiet
	k.mu.Unlock()
	if quiet {
		_, err := stream.Recv() // until the device plugin is killed
		return err
	}
	ids := healthy[2:4]
	answer, err := plugin.Allocate(ctx, &deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err == nil {
		if given := answer.ContainerResponses[0]; given.Envs["PCIDEVICE_RDMA_KILLED"] != ids[0]+","+ids[1] || len(given.CdiDevices) != len(ids) {
			err = fmt.Errorf("allocated: %v", given)
		}
	}
	k.give(ids)
	time.Sleep(300 * time.Millisecond) // several looks of the device plugin
	k.give(nil)
	time.Sleep(300 * time.Millisecond)
	if killErr := syscall.Kill(pid, syscall.SIGTERM); err == nil {
		err = killErr
	}
	return err
}
