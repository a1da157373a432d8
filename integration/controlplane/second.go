package controlplane

import (
	"context"
	"net"
	"net/http"
	"syscall"

	"github.com/rail-cni/rail-cni/integration/process"
)

// Second is another kube-apiserver of a plane, on the same etcd and with the same
// certificates. Clusters have several behind a load balancer: each has caches of its own.
type Second struct {
	process *process.Process
	admin   *Client
}

// StartSecond starts another kube-apiserver, and waits until it is ready. [Plane.Requests]
// does not have its requests. The caller must kill it before the plane is closed.
func (p *Plane) StartSecond(ctx context.Context) (*Second, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	started, err := process.Start(process.Spec{
		Name: "second-kube-apiserver", Log: p.file("second-kube-apiserver.log"), Args: p.apiserverArgs(host, port),
	})
	if err != nil {
		return nil, err
	}
	admin := *p.Admin()
	admin.server = "https://" + address
	s := &Second{started, &admin}
	for _, path := range append([]string{"/readyz"}, p.serves...) {
		err := started.Poll(ctx, patience, func(ctx context.Context) error {
			return s.admin.into(ctx, nil, http.MethodGet, path, "", nil)
		})
		if err != nil {
			s.Kill()
			return nil, err
		}
	}
	return s, nil
}

// Admin returns a client of a cluster administrator.
func (s *Second) Admin() *Client { return s.admin }

// Pause stops the server without ending it (SIGSTOP). Requests to it hang, and its caches
// miss what is written through the other server.
func (s *Second) Pause() error { return s.process.Signal(syscall.SIGSTOP) }

// Resume lets a paused server go on (SIGCONT).
func (s *Second) Resume() error { return s.process.Signal(syscall.SIGCONT) }

// Kill kills the server (SIGKILL).
func (s *Second) Kill() { s.process.Kill() }
