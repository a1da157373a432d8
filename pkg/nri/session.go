package nri

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/nri/pkg/version"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/failure"
)

const (
	// pluginName is the name with which the plugin registers at the runtime.
	pluginName = "rail-cni"
	// pluginIndex sorts the plugins of a node. This plugin comes late, so it sees what other
	// plugins have set and does not change it. If two plugins set the same thing, the runtime
	// refuses the container.
	pluginIndex = "90"
	// service is the name of NRI's plugin service (pkg/api/api.proto of NRI).
	service = "nri.pkg.api.v1alpha1.Plugin"
)

// session connects and registers the plugin. It returns when the connection has ended.
//
// It does not use NRI's stub. If the runtime dies after it has answered the registration and before
// it calls Configure, the stub waits forever and cannot be stopped.
func (p *Plugin) session(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", p.Socket)
	if err != nil {
		return err
	}
	mux := multiplex.Multiplex(conn)
	defer mux.Close()
	listener, err := mux.Listen(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	runtime, err := mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.RegisterService(service, &ttrpc.ServiceDesc{Methods: p.methods(runtimeMemlock(conn))})
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer server.Close()
	defer cancel()
	serving.Go(func() { _ = server.Serve(ctx, listener) }) // Serve ends with the connection
	closed := make(chan struct{})
	client := ttrpc.NewClient(runtime, ttrpc.WithOnClose(sync.OnceFunc(func() { close(closed) })))
	defer client.Close()
	defer p.count(func(m *metrics) { m.Connected = false })

	registering, done := context.WithTimeout(ctx, api.DefaultPluginRegistrationTimeout)
	defer done()
	request := &api.RegisterPluginRequest{PluginName: pluginName, PluginIdx: pluginIndex, NRIVersion: version.GetFromBuildInfo()}
	if _, err := api.NewRuntimeClient(client).RegisterPlugin(registering, request); err != nil {
		return err
	}
	select {
	case <-closed:
	case <-ctx.Done():
	}
	return nil
}

// methods returns the methods that the runtime can call. It calls only the first three, and the
// ones to which the plugin subscribes.
func (p *Plugin) methods(limit memlock) map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"Configure": method(p, func(_ context.Context, r *api.ConfigureRequest) (*api.ConfigureResponse, error) {
			p.connected(r)
			var events api.EventMask
			events.Set(api.Event_CREATE_CONTAINER)
			return &api.ConfigureResponse{Events: int32(events)}, nil
		}),
		// Running containers are not changed. The runtime may send the pods in several calls.
		"Synchronize": method(p, func(_ context.Context, r *api.SynchronizeRequest) (*api.SynchronizeResponse, error) {
			return &api.SynchronizeResponse{More: r.More}, nil
		}),
		"Shutdown": method(p, func(context.Context, *api.Empty) (*api.Empty, error) { return &api.Empty{}, nil }),
		"CreateContainer": method(p, func(ctx context.Context, r *api.CreateContainerRequest) (*api.CreateContainerResponse, error) {
			adjustment, err := p.createContainer(ctx, r.GetPod(), r.GetContainer(), limit)
			return &api.CreateContainerResponse{Adjust: adjustment}, err
		}),
	}
}

// method returns a method of the service. A panic in the method is contained.
func method[Q, A any](p *Plugin, handle func(context.Context, *Q) (*A, error)) ttrpc.Method {
	return func(ctx context.Context, decode func(any) error) (any, error) {
		return component.Value(p.reporter, func() (any, error) {
			request := new(Q)
			if err := decode(request); err != nil {
				return nil, err
			}
			return handle(ctx, request)
		})
	}
}

// connected is called when the runtime has accepted the plugin.
func (p *Plugin) connected(r *api.ConfigureRequest) {
	p.Log.Info("connected to NRI", "socket", p.Socket, "runtime", r.RuntimeName, "version", r.RuntimeVersion)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.metrics.Connected, p.absent = true, false
	p.reporter.Over("NRIUnavailable")
}

// ended reports why there is no connection. If there is no socket, the runtime has no NRI or is
// just restarting.
func (p *Plugin) ended(err error) {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		p.mu.Lock()
		again := p.absent
		p.absent = true
		p.mu.Unlock()
		if !again {
			p.Log.Info("runtime has no NRI socket, so containers are not changed", "socket", p.Socket)
		}
	case err == nil, errors.Is(err, ttrpc.ErrClosed), errors.Is(err, io.EOF):
		p.Log.Info("connection to NRI has ended", "socket", p.Socket)
	default:
		err = failure.From(err, failure.IO, "NRI at %s", p.Socket).
			Cure("allow connections in the runtime's configuration of NRI, or start rail-agent with --nri-socket off")
		p.reporter.Once("NRIUnavailable", component.Notice{Reason: "NRIUnavailable", Summary: "NRI cannot be used", Message: err.Error(), Warning: true})
	}
}
