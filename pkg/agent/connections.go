package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// maxConnections bounds the open connections of a listener. Each takes 20 kB.
const maxConnections = 64

// connections are those of a server. Above the bound the oldest that is not being answered is
// closed, so that idle ones keep nobody from an answer. netutil.LimitListener would let a
// probe wait for them.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is an open one.
type connection struct {
	since   time.Time
	answers atomic.Bool
}

// ofConnection is the key of the connection in the context of its requests.
type ofConnection struct{}

// bound makes the server keep to the bound.
func (c *connections) bound(s *http.Server) {
	c.open = map[net.Conn]*connection{}
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, ofConnection{}, c.add(conn))
	}
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.open, conn)
		}
	}
	answer := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k, ok := r.Context().Value(ofConnection{}).(*connection); ok {
			k.answers.Store(true)
			defer k.answers.Store(false)
		}
		answer.ServeHTTP(w, r)
	})
}

// add notes a new connection, and closes another if there are too many: if all are being
// answered, the new one.
func (c *connections) add(conn net.Conn) *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &connection{since: time.Now()}
	if len(c.open) >= maxConnections {
		oldest, since := conn, k.since
		for other, o := range c.open {
			if !o.answers.Load() && o.since.Before(since) {
				oldest, since = other, o.since
			}
		}
		delete(c.open, oldest)
		// Closing a TLS connection would wait for its peer.
		if t, ok := oldest.(*tls.Conn); ok {
			oldest = t.NetConn()
		}
		_ = oldest.Close()
		if since.Equal(k.since) {
			return k
		}
	}
	c.open[conn] = k
	return k
}
