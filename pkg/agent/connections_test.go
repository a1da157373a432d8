package agent

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// counted is a listener that counts the open connections.
type counted struct {
	net.Listener
	mu        sync.Mutex
	now, most int
}

type countedConn struct {
	net.Conn
	close func()
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.add(1)
	return &countedConn{c, sync.OnceFunc(func() { l.add(-1) })}, nil
}

func (l *counted) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now += n
	l.most = max(l.most, l.now)
}

func (c *countedConn) Close() error {
	defer c.close()
	return c.Conn.Close()
}

// TestIdleConnectionsAreBoundedAndKeepNobodyFromAnAnswer: any process in the host's network can
// connect to the port of the metrics.
func TestIdleConnectionsAreBoundedAndKeepNobodyFromAnAnswer(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &counted{Listener: tcp}
	s := &server{listener: l, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })}
	go func() { _ = s.serve(t.Context()) }()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range 3 * maxConnections {
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 { // the beginning of a request
			_, _ = c.Write([]byte("GET / HT"))
		}
	}
	answer, err := client.Get("http://" + tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.most > maxConnections+1 { // one is closed when the next one has come
		t.Errorf("%d connections were open", l.most)
	}
}
