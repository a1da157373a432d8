package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// hung is the time without a check after which a keeper counts as hung.
const hung = 4 * slow

// Status is the answer of the socket to GET /status.
type Status struct {
	Version     string    `json:"version"`
	Node        string    `json:"node"`
	Since       time.Time `json:"since"`
	StateDirs   []StateOf `json:"stateDirs"`
	Binaries    []binary  `json:"binaries"`
	Journal     int       `json:"journal"` // addresses to be freed
	JournalErr  string    `json:"journalError,omitempty"`
	MemoryBytes int64     `json:"memoryBytes"` // resident
	// NRI: the NRI plugin is connected to the runtime.
	NRI bool `json:"nri"`
	// Kubeconfig is that of the plugin whereabouts; nil if the agent does not maintain it, or
	// has not looked yet.
	Kubeconfig *Kubeconfig `json:"kubeconfig,omitempty"`
}

// StateOf is the status of a state directory.
type StateOf struct {
	Path   string    `json:"path"`
	Looked time.Time `json:"looked"` // time of the last check
	Ending []Ending  `json:"ending"` // attachments whose pod is gone
}

// Ending is an attachment that is being ended, or could not be ended.
type Ending struct {
	ledger.Key
	NIC   string      `json:"nic"`
	Pod   *ledger.Pod `json:"pod,omitempty"`
	Since time.Time   `json:"since"`
	Tries int         `json:"tries"`
	Next  time.Time   `json:"next,omitzero"`
	Error string      `json:"error,omitempty"`
}

func (a *agent) status() Status {
	waiting, err := a.journal.get()
	s := Status{
		Version: a.Version, Node: a.NodeName, Since: a.began, Binaries: a.binaries.states(), Journal: waiting,
		MemoryBytes: resident(), Kubeconfig: a.kubeconfig(),
	}
	if err != nil {
		s.JournalErr = err.Error()
	}
	if a.NRI != nil {
		s.NRI = a.NRI().Connected
	}
	for _, k := range a.keepers {
		of := StateOf{Path: k.node.Ledger.Dir(), Looked: k.lastLook(), Ending: []Ending{}}
		for _, d := range k.unended() {
			e := Ending{Key: d.record.Key, NIC: d.record.NICName(), Pod: d.record.Pod, Since: d.since, Tries: d.tries, Next: d.next}
			if d.err != nil {
				e.Error = d.err.Error()
			}
			of.Ending = append(of.Ending, e)
		}
		s.StateDirs = append(s.StateDirs, of)
	}
	return s
}

func (k *keeper) lastLook() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.looked
}

// healthy returns an error if a keeper hangs.
func (a *agent) healthy() error {
	for _, k := range a.keepers {
		if since := time.Since(latest(k.lastLook(), a.began)); since > hung {
			return fmt.Errorf("%s: last looked %v ago", k.node.Ledger.Dir(), since.Round(time.Second))
		}
	}
	return nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// ready returns an error unless every keeper has checked its records and can
// read them, and the other conditions of readiness hold.
func (a *agent) ready() error {
	if a.Ready != nil {
		if err := a.Ready(); err != nil {
			return err
		}
	}
	if err := a.metricsState.get(); err != nil && !a.Uninstalling {
		return err
	}
	for _, k := range a.keepers {
		k.mu.Lock()
		looked, unreadable := k.looked, k.unreadable
		k.mu.Unlock()
		switch {
		case looked.IsZero():
			return fmt.Errorf("%s: not looked yet", k.node.Ledger.Dir())
		case unreadable != "" && !a.Leaving:
			return fmt.Errorf("%s: there are records that cannot be read", k.node.Ledger.Dir())
		}
	}
	return a.healthy()
}

func probe(ask func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := ask(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// server is one of the agent's listeners.
type server struct {
	listener net.Listener
	handler  http.Handler
	lock     *statefile.Lock // of the socket, may be nil
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

// answers returns the agent's handler. Unless nil, guard protects the metrics.
func (a *agent) answers(guard func(http.Handler) http.Handler) *http.ServeMux {
	metrics := a.metrics()
	if guard != nil {
		metrics = guard(metrics)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", probe(a.healthy))
	mux.HandleFunc("GET /readyz", probe(a.ready))
	return mux
}

// private listens on the socket for root, if there is one.
func (a *agent) private() (*server, error) {
	if a.Socket == "" {
		return nil, nil //nolint:nilnil // no socket is no error
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
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.status()) // the client may be gone
	})
	if a.Facts != nil {
		mux.HandleFunc("GET /facts", a.facts)
	}
	return &server{l, mux, lock}, nil
}

// listenUnix opens a socket for root only. It replaces that of another agent: see [takeSocket].
func listenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		_ = os.Remove(path)
	}
	// Others could connect between bind(2) and a chmod. So set the socket's own
	// mode: bind creates the file with it, less the umask (unix_bind_bsd).
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	return l, failure.Wrap(err, failure.IO, "socket %s", path)
}
