package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

func probe(ask func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := ask(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// server is one of the agent's servers, with its listener.
type server struct {
	listener net.Listener
	handler  http.Handler
	lock     *statefile.Lock // the lock of the socket; may be nil
}

func (s *server) serve(ctx context.Context) error {
	h := &http.Server{Handler: s.handler, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	new(connections).bound(h)
	if s.lock != nil {
		defer s.lock.Unlock()
	}
	defer context.AfterFunc(ctx, func() { _ = h.Close() })()
	err := h.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// answers returns the agent's handler. If guard is not nil, it protects the metrics.
func (a *Agent) answers(guard func(http.Handler) http.Handler) *http.ServeMux {
	metrics := a.metrics
	if guard != nil {
		metrics = guard(metrics)
	}
	mux := a.probes()
	mux.Handle("GET /metrics", metrics)
	return mux
}

// probes returns the handler for the kubelet's probes.
func (a *Agent) probes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", probe(a.healthy))
	mux.HandleFunc("GET /readyz", probe(a.ready))
	return mux
}

// health listens at the address for the probes. If there is no address, it returns nil.
func (a *Agent) health() (*server, error) {
	if a.Health == "" {
		return nil, nil //nolint:nilnil // it is not an error if there is no address
	}
	l, err := net.Listen("tcp", a.Health)
	if err != nil {
		return nil, failure.From(err, failure.IO, "health").Cure("free the port, or name another one with --health")
	}
	return &server{listener: l, handler: a.probes()}, nil
}

// private listens on the socket for root. If there is no socket, it returns nil.
func (a *Agent) private() (*server, error) {
	if a.Socket == "" {
		return nil, nil //nolint:nilnil // it is not an error if there is no socket
	}
	lock, err := takeSocket(a.Socket)
	if err != nil {
		return nil, err
	}
	l, err := listenUnix(a.Socket)
	if err != nil {
		return nil, err
	}
	mux := a.answers(nil)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		text, err := a.Status()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n')) // the client may be gone
	})
	for i := range a.components {
		for pattern, handler := range a.components[i].Handlers {
			mux.Handle(pattern, handler)
		}
	}
	return &server{l, mux, lock}, nil
}

// listenUnix opens a socket that only root can use. It replaces the socket of an agent that no
// longer lives (see [takeSocket]).
func listenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		_ = os.Remove(path)
	}
	// If the mode were set by chmod after bind(2), others could connect in between. So the mode of
	// the socket itself is set: bind creates the file with this mode, less the umask
	// (unix_bind_bsd).
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	return l, failure.Wrap(err, failure.IO, "socket %s", path)
}
