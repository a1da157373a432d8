package gpuplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Resource is the name of NVIDIA's resource.
const Resource = "nvidia.com/gpu"

// Options describes a plugin.
type Options struct {
	KubeletDir string // the kubelet's root directory, by a path of at most 70 bytes
	Resource   string // [Resource] if empty
	Socket     string // name of the plugin's socket; that of the resource, without its prefix, if empty
	GPUs       []GPU
	// Allocated, if not nil, is called with the IDs of each container to which the
	// kubelet allocates GPUs, before the kubelet has the answer. It may ask the kubelet
	// for its pods' resources.
	Allocated func(ctx context.Context, ids []string)
}

// Plugin is a running device plugin.
type Plugin struct {
	options Options
	stop    context.CancelFunc
	ended   chan struct{}

	mu      sync.Mutex
	server  *grpc.Server // nil before the first start
	kubelet fs.FileInfo  // the kubelet's socket of the last registration

	api.UnimplementedDevicePluginServer
}

// Start starts a plugin, which registers with the kubelet now, and again whenever the
// kubelet starts anew. The caller must close it.
func Start(o Options) (*Plugin, error) {
	if o.Resource == "" {
		o.Resource = Resource
	}
	if o.Socket == "" {
		o.Socket = path.Base(o.Resource) + ".sock"
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Plugin{options: o, stop: stop, ended: make(chan struct{})}
	if err := p.register(ctx); err != nil {
		stop()
		return nil, errors.Join(fmt.Errorf("device plugin for %s: %w", o.Resource, err), p.end())
	}
	go p.keep(ctx)
	return p, nil
}

// Close ends the plugin. The kubelet then has no healthy device of its resource.
func (p *Plugin) Close() error {
	p.stop()
	<-p.ended
	return p.end()
}

// dir returns the path of a file in the kubelet's directory of device plugins.
func (p *Plugin) dir(name string) string {
	return filepath.Join(p.options.KubeletDir, "device-plugins", name)
}

// keep registers the plugin whenever the kubelet has a new socket, or has removed the
// plugin's, as it does when it starts.
func (p *Plugin) keep(ctx context.Context) {
	defer close(p.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
		now, err := os.Stat(p.dir("kubelet.sock"))
		if err != nil {
			continue // the kubelet is starting
		}
		_, err = os.Stat(p.dir(p.options.Socket))
		if err != nil || p.kubelet == nil || !os.SameFile(now, p.kubelet) {
			_ = p.register(ctx) // it is tried again until the kubelet answers
		}
	}
}

// register serves a new socket, and registers it.
func (p *Plugin) register(ctx context.Context) error {
	if err := p.end(); err != nil {
		return err
	}
	kubelet, err := os.Stat(p.dir("kubelet.sock"))
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", p.dir(p.options.Socket))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }() // until the server is stopped
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()

	connection, err := grpc.NewClient("unix:"+p.dir("kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: p.options.Socket, ResourceName: p.options.Resource, Options: &api.DevicePluginOptions{},
	})
	if err == nil {
		p.kubelet = kubelet
	}
	return err
}

// end stops the server, and removes its socket.
func (p *Plugin) end() error {
	p.mu.Lock()
	server := p.server
	p.server = nil
	p.mu.Unlock()
	if server != nil {
		server.Stop()
	}
	if err := os.Remove(p.dir(p.options.Socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// GetDevicePluginOptions implements [api.DevicePluginServer].
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch implements [api.DevicePluginServer]: all GPUs are always healthy.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	devices := make([]*api.Device, 0, len(p.options.GPUs))
	for _, gpu := range p.options.GPUs {
		device := &api.Device{ID: gpu.UUID, Health: api.Healthy}
		if gpu.NUMA >= 0 {
			device.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(gpu.NUMA)}}}
		}
		devices = append(devices, device)
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate implements [api.DevicePluginServer]. Its answer has no device and no variable.
func (p *Plugin) Allocate(ctx context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		if p.options.Allocated != nil {
			p.options.Allocated(ctx, container.DevicesIds)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return answer, nil
}
