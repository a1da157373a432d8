package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/transport"
)

// This file runs programs in containers. Source: the channels of Kubernetes' protocol
// v4.channel.k8s.io over a WebSocket (k8s.io/apimachinery/pkg/util/httpstream/wsstream).
// client-go's own client (tools/remotecommand) would bring SPDY and the types of all API
// objects to each program that imports this package. The WebSocket is made with the library that
// client-go uses.

const (
	execProtocol = "v4.channel.k8s.io"
	maxInput     = 32 << 10 // bytes of stdin in one message
	maxErrText   = 4 << 10  // bytes of stderr in an error, and of the status
	maxMessage   = 32 << 20 // bytes of one message; the kubelet's have at most 32 KiB
)

// The channels of execProtocol: the first byte of each message.
const (
	stdinChannel  = 0
	stdoutChannel = 1
	stderrChannel = 2
	statusChannel = 3
)

// Exec runs a program in a container of a running pod, without stdin, and writes the
// program's stdout to out. If the program's exit code is not 0, it returns an error with
// the end of the program's stderr. If a write to out fails, Exec ends and returns the
// error. Exec is not repeated. It needs the right to get pods/exec, and since Kubernetes
// 1.35 also the right to create it.
func (c *Client) Exec(ctx context.Context, namespace, pod, container string, command []string, out io.Writer) error {
	return c.ExecTo(ctx, namespace, pod, container, command, out, nil)
}

// ExecTo is like [Client.Exec], and also writes the program's stderr to errOut, if errOut
// is not nil. If the exit code is not 0, the error wraps an [ExitError].
func (c *Client) ExecTo(ctx context.Context, namespace, pod, container string, command []string, out, errOut io.Writer) error {
	q := request{
		verb: "get", method: http.MethodGet, resource: Resource{Version: "v1", Plural: "pods", Namespace: namespace}, name: pod, sub: "exec",
		query: url.Values{"command": command, "container": {container}, "stdout": {"true"}, "stderr": {"true"}}, accept: anyType,
	}
	conn, failed := c.upgrade(ctx, q)
	if failed != nil {
		return c.explain(q, failed)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := readExec(conn, out, errOut); err != nil {
		return fmt.Errorf("%s in pod %s/%s: %w", strings.Join(command, " "), namespace, pod, because(ctx, err))
	}
	return nil
}

// Attach connects in and out to the program of a running container. It copies in to the
// program's stdin, and the program's output from now on to out. It returns nil when the
// program ends, and an error when ctx ends.
//
// When in ends, Attach closes the connection as well, because the protocol cannot close
// stdin alone. If the container has stdinOnce, the program's stdin ends with the
// connection, even if this process is killed. Attach does not close in and out; a Read of
// in and a Write of out may still be under way when it returns. It needs the right to get
// pods/attach, and since Kubernetes 1.35 also the right to create it.
func (c *Client) Attach(ctx context.Context, namespace, pod, container string, in io.Reader, out io.Writer) error {
	q := request{
		verb: "get", method: http.MethodGet, resource: Resource{Version: "v1", Plural: "pods", Namespace: namespace}, name: pod, sub: "attach",
		query: url.Values{"container": {container}, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"}}, accept: anyType,
	}
	conn, failed := c.upgrade(ctx, q)
	if failed != nil {
		return c.explain(q, failed)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	ended, running := make(chan error, 1), make(chan error, 1)
	go func() { ended <- feed(conn, in) }()
	go func() { running <- readExec(conn, out, nil) }()
	var err error
	select {
	case err = <-running:
	case err = <-ended:
	case <-ctx.Done(): // both out and in may block
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("attached to pod %s/%s: %w", namespace, pod, because(ctx, err))
	}
	return nil
}

// upgrade sends the request for a WebSocket on a new connection. The client's other
// requests use HTTP/2, which has no upgrades.
func (c *Client) upgrade(ctx context.Context, q request) (*websocket.Conn, *Error) {
	// API servers take each frame for a message, so the buffer must hold a whole message.
	dial := &dialing{Dialer: websocket.Dialer{Subprotocols: []string{execProtocol}, WriteBufferSize: 1 + maxInput}}
	sent, err := c.build(ctx, q)
	var round http.RoundTripper
	if err == nil {
		round, err = dial.withCredentials(&c.config)
	}
	if err != nil {
		failed := c.failure(q, err)
		failed.final = true
		return nil, failed
	}
	answer, err := round.RoundTrip(sent)
	switch {
	case err != nil:
		return nil, c.failure(q, because(ctx, err))
	case dial.conn == nil && answer.StatusCode != http.StatusSwitchingProtocols:
		return nil, c.refusal(ctx, q, answer)
	case dial.conn == nil || dial.conn.Subprotocol() != execProtocol:
		if dial.conn != nil {
			_ = dial.conn.Close()
		}
		return nil, c.notAPIServer(q, answer, errors.New("the answer is not an API server's WebSocket"))
	}
	return dial.conn, nil
}

// dialing makes the connection of one request. It is a round tripper, so that client-go's
// round trippers can add credentials.
type dialing struct {
	websocket.Dialer
	conn *websocket.Conn // nil if the server refused
}

// withCredentials returns a round tripper that adds the credentials of c, and sets d's TLS
// and proxy from c.
func (d *dialing) withCredentials(c *Config) (http.RoundTripper, error) {
	loaded, err := c.load()
	if err != nil {
		return nil, err
	}
	if d.TLSClientConfig, err = transport.TLSConfigFor(loaded.Transport); err != nil {
		return nil, err
	}
	if d.Proxy = loaded.Transport.Proxy; d.Proxy == nil {
		d.Proxy = http.ProxyFromEnvironment
	}
	return transport.HTTPWrappersForConfig(loaded.Transport, d)
}

// RoundTrip implements http.RoundTripper.
func (d *dialing) RoundTrip(r *http.Request) (*http.Response, error) {
	to := *r.URL
	to.Scheme = strings.Replace(to.Scheme, "http", "ws", 1)
	conn, answer, err := d.DialContext(r.Context(), to.String(), r.Header)
	if errors.Is(err, websocket.ErrBadHandshake) {
		return answer, nil // the answer has the reason
	}
	d.conn = conn
	return answer, err
}

// readExec reads messages until the server sends the exit status of the program. errOut may
// be nil.
func readExec(conn *websocket.Conn, out, errOut io.Writer) error {
	conn.SetReadLimit(maxMessage)
	stderr := &tail{}
	toStderr := io.Writer(stderr)
	if errOut != nil {
		toStderr = io.MultiWriter(stderr, errOut)
	}
	for {
		kind, message, err := conn.NextReader()
		var closed *websocket.CloseError
		switch {
		case errors.As(err, &closed) && closed.Code != websocket.CloseAbnormalClosure:
			return errors.New("the server closed the connection before the program ended")
		case err != nil:
			return fmt.Errorf("the connection broke off: %w", err)
		case kind != websocket.BinaryMessage:
			return errors.New("the server sent an unexpected text message")
		}
		var channel [1]byte
		if _, err := io.ReadFull(message, channel[:]); errors.Is(err, io.EOF) {
			continue // an empty message
		} else if err != nil {
			return err
		}
		switch channel[0] {
		case stdoutChannel:
			_, err = io.Copy(out, message)
		case stderrChannel:
			_, err = io.Copy(toStderr, message)
		case statusChannel:
			var text []byte
			if text, err = io.ReadAll(io.LimitReader(message, maxErrText)); err == nil && len(text) > 0 {
				return exit(text, stderr)
			}
		}
		if err != nil {
			return err
		}
	}
}

// feed sends what can be read from in as stdin, until in ends.
func feed(conn *websocket.Conn, in io.Reader) error {
	message := make([]byte, 1+maxInput)
	message[0] = stdinChannel
	for {
		n, err := in.Read(message[1:])
		if n > 0 {
			if err := conn.WriteMessage(websocket.BinaryMessage, message[:1+n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// exit returns the error in the program's status, or nil if the exit code is 0.
func exit(text []byte, stderr *tail) error {
	var status struct {
		Status  string `json:"status"`
		Message string `json:"message"`
		Details struct {
			Causes []struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"causes"`
		} `json:"details"`
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return fmt.Errorf("the program's status is not JSON: %w", err)
	}
	if status.Status == "Success" {
		return nil
	}
	message := status.Message
	if printed := strings.TrimSpace(string(stderr.last)); printed != "" {
		message += ": " + printed
	}
	for _, cause := range status.Details.Causes {
		if code, err := strconv.Atoi(cause.Message); cause.Reason == "ExitCode" && err == nil {
			return &ExitError{code, message}
		}
	}
	return errors.New(message)
}

// ExitError is the error of a program that ran in a container and whose exit code is not 0.
type ExitError struct {
	Code int
	text string
}

func (e *ExitError) Error() string { return e.text }

// tail keeps the end of what is written.
type tail struct{ last []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	if more := len(t.last) - maxErrText; more > 0 {
		t.last = append([]byte(nil), t.last[more:]...)
	}
	return len(p), nil
}
