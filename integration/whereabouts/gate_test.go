package whereabouts

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/controlplane"
)

// gate is a proxy of the API server that can be shut: it then accepts requests,
// and does not answer them until it is opened.
type gate struct {
	url string

	mu     sync.Mutex
	opened chan struct{} // is closed while the gate is open
	part   string        // of the paths of held requests
	held   int           // requests, in total
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{opened: make(chan struct{})}
	close(g.opened)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !g.pass(r) {
			return
		}
		code, answer, err := plane.Admin().Do(r.Context(), r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(answer)
	}))
	g.url = server.URL
	t.Cleanup(server.Close)
	t.Cleanup(g.open)
	return g
}

// pass waits until the gate is open for r, and reports whether r still waits for
// an answer.
func (g *gate) pass(r *http.Request) bool {
	g.mu.Lock()
	opened := g.opened
	if !strings.Contains(r.URL.Path, g.part) {
		g.mu.Unlock()
		return true
	}
	select {
	case <-opened:
	default:
		g.held++
	}
	g.mu.Unlock()
	select {
	case <-opened:
		return true
	case <-r.Context().Done():
		return false
	}
}

// shut holds the requests whose path contains part.
func (g *gate) shut(part string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened, g.part, g.held = make(chan struct{}), part, 0
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.opened:
	default:
		close(g.opened)
	}
}

// holds returns how many requests were held since the gate was shut.
func (g *gate) holds() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

// newNodeBehind makes a node that reaches the API server through g.
func newNodeBehind(t *testing.T, namespace string, g *gate) *node {
	t.Helper()
	n := newNode(t, namespace)
	c, err := plane.CertificateFor("node-of-"+namespace, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plane.Kubeconfig(c, controlplane.Form{Path: filepath.Join(n.dir, "kubeconfig"), Server: g.url, Namespace: namespace}); err != nil {
		t.Fatal(err)
	}
	return n
}

// glob returns the node's files that match a pattern.
func (n *node) glob(t *testing.T, pattern ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(append([]string{n.dir}, pattern...)...))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// lockPool takes the lock of a pool that the node has used before, as a hanging
// process does, and returns a function that releases it.
func (n *node) lockPool(t *testing.T, pool string) (unlock func()) {
	t.Helper()
	files := n.glob(t, "state", "ipam-kubernetes", "*", "pools", pool, "lock")
	if len(files) != 1 {
		t.Fatalf("locks of pool %s: %q", pool, files)
	}
	fd, err := unix.Open(files[0], unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() { _ = unix.Close(fd) })
	t.Cleanup(unlock)
	return unlock
}

// asks returns the number of requests in a pool's queue.
func (n *node) asks(t *testing.T, pool string) int {
	t.Helper()
	return len(n.glob(t, "state", "ipam-kubernetes", "*", "pools", pool, "*.ask"))
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}
