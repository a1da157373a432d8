package deviceplugin

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/contain"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/resource"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// stopTime bounds the wait for running calls when a server ends.
const stopTime = 2 * time.Second

// server serves one resource to the kubelet.
type server struct {
	kubelet.UnimplementedDevicePluginServer
	registration.UnimplementedRegistrationServer

	plugin   *Plugin
	resource string
	socket   string             // path of the server's socket
	wake     *component.Trigger // something in the kubelet's directories changed

	mu       sync.Mutex
	pool     resource.Pool
	devices  []*kubelet.Device
	changed  chan struct{} // closed when devices changes
	sent     map[string]bool
	watchers int
	watched  time.Time     // when the kubelet last began to watch
	taken    string        // the socket of another device plugin that serves the resource, "" if there is none
	hidden   string        // like taken, but found by the plugin's devices and not by its name
	searched time.Time     // when hidden was last looked for
	ending   chan struct{} // closed when streams should end
}

// newServer returns a server for a pool. The server does nothing until it runs.
func newServer(p *Plugin, pool resource.Pool, devices []*kubelet.Device) *server {
	return &server{
		plugin: p, resource: pool.Resource, pool: pool, devices: devices,
		socket:  filepath.Join(p.KubeletDir, kubeletdir.PluginsDir, resource.OwnSocket+resource.FileName(pool.Resource)+"-"+p.instance+".sock"),
		wake:    component.NewTrigger(),
		changed: make(chan struct{}), sent: map[string]bool{},
	}
}

// set replaces the pool and its devices.
func (s *server) set(pool resource.Pool, devices []*kubelet.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = pool
	if slices.EqualFunc(s.devices, devices, sameDevice) {
		return
	}
	s.devices = devices
	close(s.changed)
	s.changed = make(chan struct{})
}

func sameDevice(a, b *kubelet.Device) bool {
	return a.GetID() == b.GetID() && a.GetHealth() == b.GetHealth() &&
		slices.EqualFunc(a.GetTopology().GetNodes(), b.GetTopology().GetNodes(), func(x, y *kubelet.NUMANode) bool { return x.GetID() == y.GetID() })
}

// run serves the resource until ctx ends, and then removes the server's sockets.
func (s *server) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if ctx.Err() == nil {
			s.plugin.Log.Debug("server of the resource ended and starts again", "resource", s.resource, "err", err)
			s.pause(ctx, firstTry)
		}
	}
}

// serve makes the socket, serves it, and keeps it registered. It returns when the socket must be
// made again: the kubelet removes all sockets when it starts.
func (s *server) serve(ctx context.Context) error {
	way, path := s.way()
	if way == wayNone {
		s.pause(ctx, lastTry)
		return nil
	}
	// With the registry the kubelet connects as soon as the socket exists.
	if who := s.findOthers(ctx); who != "" && way == wayRegistry {
		s.pause(ctx, foreignCheck)
		return nil
	}
	listener, err := kubeletdir.Listen(path)
	if err != nil {
		s.plugin.Log.Warn("cannot make the socket for the kubelet", "resource", s.resource, "socket", path, "err", err)
		s.pause(ctx, lastTry)
		return err
	}
	made, ending := kubeletdir.InodeOf(path), make(chan struct{})
	s.mu.Lock()
	s.ending = ending
	s.mu.Unlock()
	g := grpc.NewServer(grpc.ChainUnaryInterceptor(s.plugin.containUnary), grpc.ChainStreamInterceptor(s.plugin.containStream))
	kubelet.RegisterDevicePluginServer(g, s)
	registration.RegisterRegistrationServer(g, s)
	var serving sync.WaitGroup
	s.plugin.contain(&serving, func() { _ = g.Serve(listener) })
	defer serving.Wait()
	defer func() {
		if kubeletdir.InodeOf(path) == made {
			_ = removeFile(path)
		}
		close(ending)
		stop(g)
	}()
	return s.keepRegistered(ctx, way, path, made)
}

// stop ends a server. It lets running calls end first.
func stop(g *grpc.Server) {
	ended := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopTime):
		g.Stop()
	}
}

// pause waits until d has passed, a notice comes or ctx ends.
func (s *server) pause(ctx context.Context, d time.Duration) {
	if s.wake.Wait(ctx, d) {
		_ = wait.For(ctx, firstTry/2) // collects further notices
	}
}

// options are the calls that the kubelet may make to the server.
func options() *kubelet.DevicePluginOptions {
	return &kubelet.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions implements the kubelet's API.
func (s *server) GetDevicePluginOptions(context.Context, *kubelet.Empty) (*kubelet.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch sends the devices, and sends them again whenever they change.
func (s *server) ListAndWatch(_ *kubelet.Empty, stream grpc.ServerStreamingServer[kubelet.ListAndWatchResponse]) error {
	s.mu.Lock()
	s.watchers++
	s.watched = s.plugin.Now()
	ending := s.ending
	s.mu.Unlock()
	s.plugin.wake.Fire()
	defer func() {
		s.mu.Lock()
		s.watchers--
		s.mu.Unlock()
		s.wake.Fire()
	}()
	for {
		s.mu.Lock()
		devices, changed := s.devices, s.changed
		for _, d := range devices {
			s.sent[d.GetID()] = true
		}
		s.mu.Unlock()
		if err := stream.Send(&kubelet.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-ending:
			return nil
		case <-changed:
		}
	}
}

// now returns the pool as it is now.
func (s *server) now() resource.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool
}

// GetPreferredAllocation chooses devices. It never fails, because the kubelet would reject the pod.
func (s *server) GetPreferredAllocation(ctx context.Context, r *kubelet.PreferredAllocationRequest) (*kubelet.PreferredAllocationResponse, error) {
	pool := s.now()
	answer := &kubelet.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		answer.ContainerResponses = append(answer.ContainerResponses, &kubelet.ContainerPreferredAllocationResponse{
			DeviceIDs: s.preferOf(ctx, &pool, c),
		})
	}
	return answer, nil
}

// preferOf returns a choice. If the search for a good choice panics, it returns any valid choice.
func (s *server) preferOf(ctx context.Context, pool *resource.Pool, c *kubelet.ContainerPreferredAllocationRequest) []string {
	ids, err := component.Value(s.plugin.reporter, func() ([]string, error) { return s.plugin.prefer(ctx, pool, c), nil })
	if err != nil {
		return first(c.GetMustIncludeDeviceIDs(), c.GetAvailableDeviceIDs(), int(c.GetAllocationSize()))
	}
	return ids
}

// Allocate returns what containers get with devices.
func (s *server) Allocate(ctx context.Context, r *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	pool := s.now()
	answer := &kubelet.AllocateResponse{}
	for _, c := range r.GetContainerRequests() {
		got, err := s.plugin.allocate(ctx, &pool, c.GetDevicesIds())
		if err != nil {
			s.plugin.Log.Warn("cannot allocate the devices", "resource", s.resource, "devices", c.GetDevicesIds(), "err", err)
			return nil, err
		}
		answer.ContainerResponses = append(answer.ContainerResponses, got)
	}
	return answer, nil
}

// PreStartContainer does nothing. The kubelet does not call it, because the options do not
// require it.
func (s *server) PreStartContainer(context.Context, *kubelet.PreStartContainerRequest) (*kubelet.PreStartContainerResponse, error) {
	return &kubelet.PreStartContainerResponse{}, nil
}

// GetInfo returns the name of the resource to the kubelet's registry. It returns no endpoint, so
// the kubelet uses the socket on which it has sent this request.
func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DevicePlugin, Name: s.resource, SupportedVersions: []string{kubelet.Version}}, nil
}

// NotifyRegistrationStatus logs if the kubelet's registry has refused the resource.
func (s *server) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !r.GetPluginRegistered() {
		s.plugin.Log.Warn("the kubelet did not register the resource", "resource", s.resource, "err", r.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// statusOf returns the error of a call in the form for gRPC. The error of a panic becomes an
// internal error.
func statusOf(err error) error {
	if p := (*contain.PanicError)(nil); errors.As(err, &p) {
		return status.Errorf(codes.Internal, "rail-agent's device plugin failed: %v; see its log", p.Value)
	}
	return err
}
