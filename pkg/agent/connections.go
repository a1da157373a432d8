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

// maxConnections is the maximum number of open connections of a listener. Each connection needs 20
// kB.
const maxConnections = 64

// connections are the open connections of a server. If there are too many, the oldest connection on
// which no request is being answered is closed. So idle connections do not prevent anybody from
// getting an answer. With netutil.LimitListener, a probe would have to wait until other connections
// are closed.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is an open connection.
type connection struct {
	since   time.Time
	answers atomic.Bool
}

// ofConnection is the key of the connection in the context of its requests.
type ofConnection struct{}

// bound makes the server keep at most maxConnections open connections.
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

// add adds a new connection. If there are too many connections then, add closes one of them. If
// requests are being answered on all others, it closes the new connection.
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
