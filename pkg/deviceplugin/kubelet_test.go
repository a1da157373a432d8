package deviceplugin

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
)

// peer is the kubelet's side of the device plugin API, over its real sockets: it registers
// and watches as pkg/kubelet/cm/devicemanager/plugin/v1beta1 does.
type peer struct {
	api.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer

	t   *testing.T
	dir string

	mu        sync.Mutex
	servers   []*grpc.Server
	plugins   map[string]*plugged
	registers int
	pods      []*podresources.PodResources
	lists     int // calls of List
	busy      int // calls of List that are refused first
}

// plugged is a device plugin that is registered.
type plugged struct {
	conn    *grpc.ClientConn
	devices map[string]string // health by ID
	numa    map[string]int64
	updates int
}

// newPeer makes the kubelet's directories.
func newPeer(t *testing.T) *peer {
	t.Helper()
	k := &peer{t: t, dir: scratch.Dir(t), plugins: map[string]*plugged{}}
	for _, d := range []string{kubeletdir.PluginsDir, "pod-resources"} {
		if err := os.MkdirAll(filepath.Join(k.dir, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(k.stop)
	return k
}

// start removes all sockets of device plugins, and serves, as the kubelet does.
func (k *peer) start() {
	k.t.Helper()
	sockets, _ := filepath.Glob(filepath.Join(k.dir, kubeletdir.PluginsDir, "*.sock"))
	for _, s := range sockets {
		_ = os.Remove(s)
	}
	k.serve(kubeletdir.Socket, func(g *grpc.Server) { api.RegisterRegistrationServer(g, k) })
	k.serveResources()
}

// serveResources serves PodResources.
func (k *peer) serveResources() {
	k.t.Helper()
	k.serve(kubeletdir.ResourcesSocket, func(g *grpc.Server) { podresources.RegisterPodResourcesListerServer(g, k) })
}

func (k *peer) serve(name string, register func(*grpc.Server)) {
	k.t.Helper()
	l, err := kubeletdir.Listen(filepath.Join(k.dir, name))
	if err != nil {
		k.t.Fatal(err)
	}
	g := grpc.NewServer()
	register(g)
	k.mu.Lock()
	k.servers = append(k.servers, g)
	k.mu.Unlock()
	go func() { _ = g.Serve(l) }()
}

// stop ends the kubelet as SIGKILL does: its sockets remain.
func (k *peer) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.servers {
		g.Stop()
	}
	for _, p := range k.plugins {
		_ = p.conn.Close()
	}
	k.servers, k.plugins = nil, map[string]*plugged{}
}

// Register implements the kubelet's API.
func (k *peer) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.mu.Lock()
	k.registers++
	k.mu.Unlock()
	return &api.Empty{}, k.watch(ctx, r.GetResourceName(), filepath.Join(k.dir, kubeletdir.PluginsDir, r.GetEndpoint()))
}

// watch connects to a device plugin, and watches it.
func (k *peer) watch(ctx context.Context, resource, socket string) error {
	conn, err := kubeletdir.Connect(socket)
	if err != nil {
		return err
	}
	if _, err := api.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &api.Empty{}); err != nil {
		return err
	}
	stream, err := api.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &api.Empty{})
	if err != nil {
		return err
	}
	p := &plugged{conn: conn}
	k.mu.Lock()
	k.plugins[resource] = p
	k.mu.Unlock()
	go func() {
		for {
			list, err := stream.Recv()
			k.mu.Lock()
			if err != nil {
				if k.plugins[resource] == p {
					delete(k.plugins, resource)
				}
				k.mu.Unlock()
				_ = conn.Close()
				return
			}
			p.devices, p.numa = map[string]string{}, map[string]int64{}
			p.updates++
			for _, d := range list.GetDevices() {
				p.devices[d.GetID()] = d.GetHealth()
				for _, n := range d.GetTopology().GetNodes() {
					p.numa[d.GetID()] = n.GetID()
				}
			}
			k.mu.Unlock()
		}
	}()
	return nil
}

// List implements PodResources.
func (k *peer) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lists++
	if k.busy > 0 {
		k.busy--
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit") // as the kubelet does
	}
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, nil
}

// give sets the devices of a pod in the namespace default: IDs by resource.
func (k *peer) give(pod string, devices map[string][]string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = slices.DeleteFunc(slices.Clone(k.pods), func(p *podresources.PodResources) bool { return p.GetName() == pod })
	c := &podresources.ContainerResources{Name: "main"}
	for resource, ids := range devices {
		c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids})
	}
	k.pods = append(k.pods, &podresources.PodResources{Namespace: "default", Name: pod, Containers: []*podresources.ContainerResources{c}})
}

// save writes the checkpoint, with the devices of the pods and the registered devices.
func (k *peer) save(pods map[string]map[string][]string, registered map[string][]string) {
	k.t.Helper()
	var entries []map[string]any
	for pod, devices := range pods {
		for resource, ids := range devices {
			entries = append(entries, map[string]any{
				"PodUID": pod, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": map[string][]string{"0": ids},
			})
		}
	}
	text, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 1})
	if err == nil {
		err = os.WriteFile(filepath.Join(k.dir, kubeletdir.CheckpointFile), text, 0o600)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// health returns the health of a resource's devices by ID, or nil if the resource is not
// registered.
func (k *peer) health(resource string) map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.plugins[resource]; p != nil {
		return p.devices
	}
	return nil
}

// client returns a client of a device plugin that is registered.
func (k *peer) client(resource string) api.DevicePluginClient {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.plugins[resource] == nil {
		k.t.Fatalf("%s is not registered", resource)
	}
	return api.NewDevicePluginClient(k.plugins[resource].conn)
}

func (k *peer) allocate(resource string, ids ...string) (*api.ContainerAllocateResponse, error) {
	k.t.Helper()
	answer, err := k.client(resource).Allocate(k.t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	return answer.GetContainerResponses()[0], nil
}

func (k *peer) prefer(resource string, available []string, size int, must ...string) []string {
	k.t.Helper()
	answer, err := k.client(resource).GetPreferredAllocation(k.t.Context(), &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(size)}},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	ids := answer.GetContainerResponses()[0].GetDeviceIDs()
	slices.Sort(ids)
	return ids
}

// another is a device plugin of another project.
type another struct {
	api.UnimplementedDevicePluginServer
	registration.UnimplementedRegistrationServer
	resource string // resource that it names to the registry; "" if it names none
	ids      []string
}

func (a *another) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	list := &api.ListAndWatchResponse{}
	for _, id := range a.ids {
		list.Devices = append(list.Devices, &api.Device{ID: id, Health: api.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (a *another) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (a *another) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DevicePlugin, Name: a.resource, SupportedVersions: []string{api.Version}}, nil
}

// serveOther serves another device plugin at a socket, until the returned function runs. That
// function also removes the socket, as a device plugin does when it is stopped.
func (k *peer) serveOther(socket, resource string, ids ...string) (end func()) {
	k.t.Helper()
	path := filepath.Join(k.dir, socket)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		k.t.Fatal(err)
	}
	l, err := kubeletdir.Listen(path)
	if err != nil {
		k.t.Fatal(err)
	}
	g := grpc.NewServer()
	a := &another{resource: resource, ids: ids}
	api.RegisterDevicePluginServer(g, a)
	if resource != "" {
		registration.RegisterRegistrationServer(g, a)
	}
	go func() { _ = g.Serve(l) }()
	end = func() {
		g.Stop()
		_ = os.Remove(path)
	}
	k.t.Cleanup(end)
	return end
}

// await fails the test unless ok becomes true in time.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
