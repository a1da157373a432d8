package controlplane

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// reach makes the API server's address work in another network namespace.
type reach struct {
	plane *Plane
	ns    *netns.Netns // nil = that of this process

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

// Reach makes the API server answer in the network namespace at path under the
// same address as here, so that one kubeconfig works in both: this process
// listens there and forwards each connection. While the server is down the
// address refuses connections there, too. The namespace must have its loopback
// up. It is kept alive until stop is called or the plane is closed.
func (p *Plane) Reach(path string) (stop func(), err error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	r := &reach{plane: p, ns: ns, conns: map[net.Conn]bool{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.apiserver != nil {
		if err := r.open(); err != nil {
			ns.Close()
			return nil, err
		}
	}
	p.reaches[r] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.leave(r)
	}, nil
}

// Traffic returns the bytes that clients have sent and received through
// [Plane.Reach], including TLS, over ended connections: for a plugin, soon
// after its process has ended.
func (p *Plane) Traffic() (sent, received int64) {
	return p.sent.Load(), p.received.Load()
}

// leave ends a reach, once. The caller holds p.mu.
func (p *Plane) leave(r *reach) {
	if p.reaches[r] {
		delete(p.reaches, r)
		r.refuse()
		r.cut()
		r.ns.Close()
	}
}

// within runs f on a thread in a namespace; nil is that of this process.
func within(ns *netns.Netns, f func() error) error {
	if ns == nil {
		return f()
	}
	return ns.Do(f)
}

// dial connects to an address in the namespace of the plane's processes.
func (p *Plane) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = within(p.netns, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// open begins to listen. A socket stays in the namespace in which it was made.
func (r *reach) open() error {
	var l net.Listener
	err := within(r.ns, func() (err error) {
		l, err = net.Listen("tcp", r.plane.address)
		return err
	})
	if err != nil {
		return fmt.Errorf("reaching kube-apiserver: %w", err)
	}
	r.listener = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go r.handOn(conn)
		}
	}()
	return nil
}

// refuse stops listening; open connections go on.
func (r *reach) refuse() {
	if r.listener != nil {
		_ = r.listener.Close()
		r.listener = nil
	}
}

// cut ends all connections.
func (r *reach) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		_ = conn.Close()
	}
}

// handOn copies in both directions until either end closes.
func (r *reach) handOn(near net.Conn) {
	defer near.Close()
	far, err := r.plane.dial(context.Background(), "tcp", r.plane.inner)
	if err != nil {
		return
	}
	defer far.Close()
	r.mu.Lock()
	r.conns[near], r.conns[far] = true, true
	r.mu.Unlock()

	done := make(chan struct{})
	for _, way := range []struct {
		to, from net.Conn
		count    *atomic.Int64
	}{{near, far, &r.plane.received}, {far, near, &r.plane.sent}} {
		go func() {
			n, _ := io.Copy(way.to, way.from) // the two ends see the errors themselves
			way.count.Add(n)
			done <- struct{}{}
		}()
	}
	<-done // TLS ends both directions at once
	_, _ = near.Close(), far.Close()
	<-done

	r.mu.Lock()
	delete(r.conns, near)
	delete(r.conns, far)
	r.mu.Unlock()
}
