package kube_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

// balancer is a load balancer in front of a server. It can forget connections without
// notice to either end.
type balancer struct {
	net.Listener
	forgotten, connections atomic.Int64 // forgotten is the number of forgotten connections, from the first on
}

func newBalancer(t *testing.T, server *httptest.Server) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				_ = near.Close()
				return
			}
			n := b.connections.Add(1)
			go b.pump(far, near, n)
			go b.pump(near, far, n)
		}
	}()
	return b
}

func (b *balancer) pump(to, from net.Conn, n int64) {
	defer to.Close()
	buffer := make([]byte, 4096)
	for {
		size, err := from.Read(buffer)
		if err != nil {
			return
		}
		if b.forgotten.Load() >= n {
			continue
		}
		if _, err := to.Write(buffer[:size]); err != nil {
			return
		}
	}
}

func (b *balancer) forget() { b.forgotten.Store(b.connections.Load()) }

// The connection of a watch is never idle, and all other requests share it.
// They must not wait until the watch ends.
func TestConnectionLostSilentlyDuringWatch(t *testing.T) {
	a := newAuthority(t)
	b := newBalancer(t, a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("watch") {
			answer(w, http.StatusOK, pool)
			return
		}
		answer(w, http.StatusOK, `{"type":"ADDED","object":{}}`+"\n")
		flush(w)
		<-r.Context().Done()
	})))
	client := open(t, kube.Config{Kubeconfig: kubeconfig(t, "https://"+b.Addr().String(), ca(a), "token: t"), Timeout: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	defer func() { cancel(); watch.Wait() }()
	began := make(chan struct{})
	begin := sync.OnceFunc(func() { close(began) })
	watch.Go(func() {
		for ctx.Err() == nil { // on a busy machine one may not start within the client's limit
			_ = client.Watch(ctx, pools, kube.ListOptions{}, func(kube.Event) error { begin(); return nil })
		}
	})
	select {
	case <-began:
	case <-time.After(time.Minute):
		t.Fatal("no watch began")
	}
	b.forget()
	if _, err := client.Get(within(t, time.Minute), pools, "x"); err != nil {
		t.Errorf("after the connection was forgotten: %v", err)
	}
}

// The answer stops in the middle. The client must not use that connection again.
func TestConnectionLostSilentlyDuringAnswer(t *testing.T) {
	var died atomic.Pointer[string] // the far end of that connection
	var again atomic.Int64
	server := newFaulty(t, time.Second, func(_ int64, w http.ResponseWriter, r *http.Request) {
		switch {
		case died.CompareAndSwap(nil, &r.RemoteAddr):
		case *died.Load() == r.RemoteAddr:
			again.Add(1)
		default:
			answer(w, http.StatusOK, pool)
			return
		}
		answer(w, http.StatusOK, pool[:10])
		flush(w)
		<-r.Context().Done()
	})
	if _, err := server.Get(within(t, time.Minute), pools, "x"); err != nil || again.Load() != 0 {
		t.Errorf("it was asked %d times again through the same connection, and ended with %v", again.Load(), err)
	}
}

// The kubeconfig may be replaced by the kubeconfig of another cluster. The first server
// must not see the new token, and the process goes on with the first server.
func TestTokenForAnotherServerIsNotSent(t *testing.T) {
	a := newAuthority(t)
	var asked, leaked, others atomic.Int64
	var refuses atomic.Bool
	first := a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer other" {
			leaked.Add(1)
		}
		if refuses.Load() {
			asked.Add(1)
			refuse(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
			return
		}
		answer(w, http.StatusOK, pool)
	}))
	second := a.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		others.Add(1)
		answer(w, http.StatusOK, pool)
	}))
	path := kubeconfig(t, first.URL, ca(a), "token: ours")
	client := open(t, kube.Config{Kubeconfig: path})
	if _, err := client.Get(within(t, time.Minute), pools, "x"); err != nil {
		t.Fatal(err)
	}
	refuses.Store(true)
	rewrite(t, path, kubeconfig(t, second.URL, ca(a), "token: other"))
	_, err := client.Get(within(t, time.Minute), pools, "x")
	wants(t, err, "401", first.URL)
	if asked.Load() < 2 || leaked.Load() != 0 || others.Load() != 0 || client.Server() != first.URL {
		t.Errorf("the server was asked %d times, %d of them with the other's token, the other one %d times; the client's is %s",
			asked.Load(), leaked.Load(), others.Load(), client.Server())
	}
}

// rewrite replaces the content of the file at path by that of another file.
func rewrite(t *testing.T, path, from string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	file(t, path, string(content))
}
