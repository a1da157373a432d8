// Package pooltest has helpers for the tests of pkg/whereabouts: a control
// plane for all tests of a package, and owners and claims of addresses.
package pooltest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// Main runs the tests of a package with a control plane, which it stores in plane. Each
// test needs an address space or a namespace of its own on it.
func Main(m *testing.M, plane **controlplane.Plane) int {
	dir, err := scratch.MkdirTemp("pools")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer scratch.Remove(dir)
	p, err := controlplane.New(context.Background(), dir, controlplane.Options{Audit: true})
	if err != nil {
		return need.Main(err)
	}
	defer p.Close()
	*plane = p
	return m.Run()
}

// Claim returns a claim of an address of the pool of prefix in the address space.
func Claim(t testing.TB, space, prefix string) ipam.Claim {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	rng, err := ipam.NewRange(ipam.RangeSpec{Prefix: p})
	if err != nil {
		t.Fatal(err)
	}
	return ipam.Claim{Pool: ipam.Pool{Space: space, Prefix: p}, Range: rng, Exclusive: true}
}

// Pod returns the interface net1 of pod i.
func Pod(i int) ipam.Owner {
	return ipam.Owner{ContainerID: fmt.Sprintf("%064x", i+1), IfName: "net1", PodRef: fmt.Sprintf("default/pod-%d", i), Network: "net"}
}

// Context returns a context that ends after a minute, or with the test.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Parallel runs do(0) … do(n-1) concurrently.
func Parallel(n int, do func(int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			do(i)
		}()
	}
	wg.Wait()
}

// Eventually waits up to a minute for is to return true, and returns how long
// that took.
func Eventually(t testing.TB, what string, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > time.Minute {
			t.Fatal("not within a minute:", what)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(began)
}

// RequestsSince returns the requests that clients with the user agent "test-NAME" of
// the test have sent to the plane since began.
func RequestsSince(t testing.TB, plane *controlplane.Plane, began time.Time) []controlplane.Request {
	t.Helper()
	all, err := plane.Requests(Context(t), began)
	if err != nil {
		t.Fatal(err)
	}
	var requests []controlplane.Request
	for _, r := range all {
		if strings.HasPrefix(r.UserAgent, "test-"+t.Name()) {
			requests = append(requests, r)
		}
	}
	return requests
}

// Create creates an object at path.
func Create(t testing.TB, plane *controlplane.Plane, path string, object any) {
	t.Helper()
	code, data, err := plane.Admin().Create(context.Background(), path, object)
	if err != nil || code != http.StatusCreated {
		t.Fatal(path, code, string(data), err)
	}
}

// Between returns the URL of a server that passes requests on to the plane. If refuse
// returns a code, that is the answer to a request, and the plane does not see it. after
// is called before the plane's answer goes back. Both may be nil.
func Between(t testing.TB, plane *controlplane.Plane, refuse func(r *http.Request, body []byte) (code int, answer string), after func(r *http.Request)) string {
	t.Helper()
	return BetweenAny(t, plane.Admin, refuse, after)
}

// BetweenAny is like [Between], but sends each request with the client that pick returns
// for it.
func BetweenAny(t testing.TB, pick func() *controlplane.Client, refuse func(r *http.Request, body []byte) (code int, answer string), after func(r *http.Request)) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		if refuse != nil {
			if code, answer := refuse(r, body); code != 0 {
				w.WriteHeader(code)
				_, _ = io.WriteString(w, answer)
				return
			}
		}
		code, answer, err := pick().Do(r.Context(), r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if after != nil {
			after(r)
		}
		w.WriteHeader(code)
		_, _ = w.Write(answer)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// Kubeconfig writes a kubeconfig for the plane, or for the server at another URL, and
// returns its path. Its user may do everything.
func Kubeconfig(t testing.TB, plane *controlplane.Plane, server, namespace string) string {
	t.Helper()
	c, err := plane.CertificateFor("other", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	path, err := plane.Kubeconfig(c, controlplane.Form{Path: t.TempDir() + "/kubeconfig", Server: server, Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	return path
}
