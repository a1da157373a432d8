package controlplane

import (
	"context"
	"net"
	"net/http"

	"github.com/rail-cni/rail-cni/integration/process"
)

// SecondAPIServer is another kube-apiserver of a plane, on the same etcd and with the same
// certificates. Clusters have several behind a load balancer: each has caches of its own.
type SecondAPIServer struct {
	process *process.Process
	admin   *Client
}

// StartSecondAPIServer starts another kube-apiserver, and waits until it is ready. It
// writes no audit log, so [Plane.Requests] omits its requests. Call Kill before
// [Plane.Close].
func (p *Plane) StartSecondAPIServer(ctx context.Context) (*SecondAPIServer, error) {
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
	s := &SecondAPIServer{started, &admin}
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
func (s *SecondAPIServer) Admin() *Client { return s.admin }

// Pause stops the server without ending it (SIGSTOP). Requests to it hang, and its caches
// are stale when it resumes.
func (s *SecondAPIServer) Pause() error { return s.process.Pause() }

// Resume lets a paused server go on (SIGCONT).
func (s *SecondAPIServer) Resume() error { return s.process.Resume() }

// Kill kills the server (SIGKILL).
func (s *SecondAPIServer) Kill() { s.process.Kill() }
