package kube_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

// kubelet answers exec requests by the kubelet's own implementation of the channels.
func kubelet(t *testing.T, a *authority, program func(r *http.Request, stdout, stderr, status io.Writer)) *kube.Client {
	t.Helper()
	return open(t, kube.Config{Kubeconfig: kubeconfig(t, kubeletServer(t, a, program).URL, ca(a), `{token: t}`)})
}

func kubeletServer(t *testing.T, a *authority, program func(r *http.Request, stdout, stderr, status io.Writer)) *httptest.Server {
	t.Helper()
	return a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-system/pods/rail-agent-x/exec" {
			refuse(w, http.StatusNotFound, "NotFound", "no such pod")
			return
		}
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v4.channel.k8s.io": {
			Binary: true, Channels: []wsstream.ChannelType{wsstream.IgnoreChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel},
		}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		program(r, streams[1], streams[2], streams[3])
	}))
}

func run(ctx context.Context, c *kube.Client, out io.Writer, command ...string) error {
	return c.Exec(ctx, "kube-system", "rail-agent-x", "rail-agent", command, out)
}

func TestExecReturnsWhatTheProgramPrints(t *testing.T) {
	printed := strings.Repeat("facts of a node\n", 100_000)
	c := kubelet(t, newAuthority(t), func(r *http.Request, stdout, stderr, status io.Writer) {
		query := r.URL.Query()
		if !slices.Equal(query["command"], []string{"/rail-agent", "facts"}) || query.Get("container") != "rail-agent" || query.Has("stdin") {
			t.Errorf("asked for %v", query)
		}
		if r.Header.Get("Authorization") != "Bearer t" {
			t.Errorf("authorized by %q", r.Header.Get("Authorization"))
		}
		_, _ = stderr.Write([]byte("a warning"))
		for rest := printed; rest != ""; {
			n := min(len(rest), 32<<10)
			_, _ = stdout.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		_, _ = status.Write([]byte(`{"metadata":{},"status":"Success"}`))
	})
	for range 3 {
		var out bytes.Buffer
		if err := run(within(t, time.Minute), c, &out, "/rail-agent", "facts"); err != nil || out.String() != printed {
			t.Fatalf("%d bytes of %d, %v", out.Len(), len(printed), err)
		}
	}
}

// railctl leaves a kubeconfig to client-go, which runs the program that it names for
// credentials: for the connection of a program as for all other requests.
func TestExecWithAccessOfClientGo(t *testing.T) {
	a := newAuthority(t)
	server := kubeletServer(t, a, func(r *http.Request, stdout, _, status io.Writer) {
		_, _ = stdout.Write([]byte(r.Header.Get("Authorization") + r.TLS.PeerCertificates[0].Subject.CommonName))
		_, _ = status.Write([]byte(`{"metadata":{},"status":"Success"}`))
	})
	path := kubeconfig(t, server.URL, ca(a), "exec:\n  apiVersion: client.authentication.k8s.io/v1\n  command: ./login\n  interactiveMode: Never")
	cert, key := a.pair("someone")
	credential, err := json.Marshal(map[string]any{
		"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
		"status": map[string]string{"token": "t", "clientCertificateData": string(cert), "clientKeyData": string(key)},
	})
	if err != nil {
		t.Fatal(err)
	}
	file(t, filepath.Join(filepath.Dir(path), "login"), "#!/bin/sh\ncat <<'END'\n"+string(credential)+"\nEND\n")
	c := open(t, kube.Config{Kubeconfig: path, Load: func() (*kube.Access, error) {
		theirs, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			return nil, err
		}
		access := &kube.Access{}
		if access.Server, _, err = rest.DefaultServerUrlFor(theirs); err != nil {
			return nil, err
		}
		access.Transport, err = theirs.TransportConfig()
		return access, err
	}})
	var out bytes.Buffer
	if err := run(within(t, time.Minute), c, &out, "x"); err != nil || out.String() != "Bearer tsomeone" {
		t.Errorf("%q, %v", &out, err)
	}
}

// full is a writer that takes nothing.
type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestExecThatFailsSaysWhy(t *testing.T) {
	a := newAuthority(t)
	failure := `{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code","reason":"NonZeroExitCode"}`
	failed := kubelet(t, a, func(_ *http.Request, _, stderr, status io.Writer) {
		_, _ = stderr.Write([]byte("rail-agent: no such socket\n"))
		_, _ = status.Write([]byte(failure))
	})
	wants(t, run(within(t, time.Minute), failed, io.Discard, "x"), "x in pod kube-system/rail-agent-x", "non-zero exit code", "no such socket")
	wants(t, failed.Exec(within(t, time.Minute), "kube-system", "other", "c", []string{"x"}, io.Discard), "no such pod")
	wants(t, failed.Exec(within(t, time.Minute), "kube-system", "../a", "c", []string{"x"}, io.Discard), "cannot be part")
	broken := kubelet(t, a, func(_ *http.Request, stdout, _, _ io.Writer) { _, _ = stdout.Write([]byte("half")) })
	wants(t, run(within(t, time.Minute), broken, io.Discard, "x"), "before the program ended")
	odd := kubelet(t, a, func(_ *http.Request, _, _, status io.Writer) { _, _ = status.Write([]byte("exit 1")) })
	wants(t, run(within(t, time.Minute), odd, io.Discard, "x"), "not JSON")
	long := kubelet(t, a, func(_ *http.Request, stdout, _, _ io.Writer) { _, _ = stdout.Write([]byte("more than it takes")) })
	if err := run(within(t, time.Minute), long, full{}, "x"); !errors.Is(err, errFull) {
		t.Errorf("a writer that fails: %v", err)
	}
}

// The connection for a program goes through the proxy of the kubeconfig, like all other
// requests.
func TestExecGoesByTheProxy(t *testing.T) {
	a := newAuthority(t)
	server := kubeletServer(t, a, func(_ *http.Request, stdout, _, status io.Writer) {
		_, _ = stdout.Write([]byte("facts"))
		_, _ = status.Write([]byte(`{"metadata":{},"status":"Success"}`))
	})
	tunnels := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tunnels <- r.Method + " " + r.Host
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(to, conn) }()
		_, _ = io.Copy(conn, to)
	}))
	t.Cleanup(proxy.Close)
	c := open(t, kube.Config{Kubeconfig: kubeconfig(t, server.URL, ca(a)+"\nproxy-url: "+proxy.URL, `{token: t}`)})
	var out bytes.Buffer
	if err := run(within(t, time.Minute), c, &out, "x"); err != nil || out.String() != "facts" {
		t.Fatalf("%q, %v", out.String(), err)
	}
	if have, want := <-tunnels, "CONNECT "+strings.TrimPrefix(server.URL, "https://"); have != want {
		t.Errorf("the proxy was asked for %q, not %q", have, want)
	}
}

func TestExecEndsWithItsContext(t *testing.T) {
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	c := kubelet(t, newAuthority(t), func(*http.Request, io.Writer, io.Writer, io.Writer) { <-ended })
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("no facts for too long"))
	defer cancel()
	wants(t, run(ctx, c, io.Discard, "x"), "no facts for too long")
}

// attached serves a program with stdin in the pod "verify-x".
func attached(t *testing.T, a *authority, program func(r *http.Request, stdin io.Reader, stdout, status io.Writer)) *kube.Client {
	t.Helper()
	server := a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/default/pods/verify-x/attach" {
			refuse(w, http.StatusNotFound, "NotFound", "no such pod")
			return
		}
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v4.channel.k8s.io": {
			Binary: true, Channels: []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel},
		}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		program(r, streams[0], streams[1], streams[3])
	}))
	return open(t, kube.Config{Kubeconfig: kubeconfig(t, server.URL, ca(a), `{token: t}`)})
}

func TestAttachCarriesStdinAndStdout(t *testing.T) {
	seen := make(chan struct{})
	c := attached(t, newAuthority(t), func(r *http.Request, stdin io.Reader, stdout, status io.Writer) {
		if q := r.URL.Query(); q.Get("container") != "verify" || q.Get("stdin") != "true" {
			t.Errorf("asked for %v", q)
		}
		lines := bufio.NewReader(stdin)
		for {
			line, err := lines.ReadString('\n')
			switch {
			case line == "bye\n":
				_, _ = status.Write([]byte(`{"status":"Success"}`))
				return
			case err != nil: // the connection is closed
				close(seen)
				return
			}
			_, _ = io.WriteString(stdout, line)
		}
	})
	attach := func() (in *io.PipeWriter, out *bufio.Reader, ended chan error) {
		inRead, inWrite := io.Pipe()
		outRead, outWrite := io.Pipe()
		ended = make(chan error, 1)
		go func() {
			ended <- c.Attach(within(t, time.Minute), "default", "verify-x", "verify", inRead, outWrite)
			_ = inRead.Close()
		}()
		return inWrite, bufio.NewReader(outRead), ended
	}
	in, out, ended := attach()
	for _, size := range []int{1, 124, 125, 126, 40_000, 200_000} {
		line := strings.Repeat("x", size-1) + "\n"
		go func() { _, _ = io.WriteString(in, line) }()
		if have, err := out.ReadString('\n'); err != nil || have != line {
			t.Fatalf("%d bytes: %v, %d came back", size, err, len(have))
		}
	}
	if _, err := io.WriteString(in, "bye\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the program ended: %v", err)
	}
	// The line has come back before stdin ends: a client that closes a new connection at once may
	// do so before the server has begun to serve it.
	in, out, ended = attach()
	go func() { _, _ = io.WriteString(in, "line\n") }()
	if have, err := out.ReadString('\n'); err != nil || have != "line\n" {
		t.Fatalf("%q, %v", have, err)
	}
	_ = in.Close()
	if err := <-ended; err != nil {
		t.Errorf("stdin ended: %v", err)
	}
	select {
	case <-seen:
	case <-time.After(time.Minute):
		t.Error("the program's stdin did not end")
	}
	wants(t, c.Attach(within(t, time.Minute), "default", "other", "verify", strings.NewReader(""), io.Discard), "no such pod")
}

func TestAttachEndsWithItsContext(t *testing.T) {
	gone := make(chan struct{})
	c := attached(t, newAuthority(t), func(_ *http.Request, stdin io.Reader, _, _ io.Writer) {
		_, _ = io.Copy(io.Discard, stdin)
		close(gone)
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("it takes too long"))
	defer cancel()
	in, _ := io.Pipe()
	wants(t, c.Attach(ctx, "default", "verify-x", "verify", in, io.Discard), "it takes too long")
	<-gone
}

func TestDeleteWithDependentsAsksForThem(t *testing.T) {
	a := newAuthority(t)
	asked := make(chan string, 1)
	server := a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		asked <- r.Method + " " + r.URL.Path + " " + string(text)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`))
	}))
	c := open(t, kube.Config{Kubeconfig: kubeconfig(t, server.URL, ca(a), `{token: t}`)})
	if err := c.DeleteWithDependents(within(t, time.Minute), kube.Resource{Group: "batch", Version: "v1", Plural: "jobs", Namespace: "default"}, "j"); err != nil {
		t.Fatal(err)
	}
	const want = `DELETE /apis/batch/v1/namespaces/default/jobs/j {"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`
	if have := <-asked; have != want {
		t.Errorf("%s\nnot\n%s", have, want)
	}
}

// A proxy that does not know the upgrade, and frames that no server may send.
func TestExecOfAServerThatIsNone(t *testing.T) {
	a := newAuthority(t)
	for name, c := range map[string]struct{ head, frames, want string }{
		"no upgrade":         {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "", "hi"},
		"another protocol":   {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "", "not an API server's WebSocket"},
		"a masked frame":     {"", "\x82\x81\x00\x00\x00\x00\x01", "MASK"},
		"an endless frame":   {"", "\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff", "limit exceeded"},
		"a long ping":        {"", "\x89\x7e\x01\x00", "control"},
		"no message to end":  {"", "\x80\x01\x01", "continuation"},
		"an unknown frame":   {"", "\x83\x00", "opcode"},
		"text":               {"", "\x81\x02hi", "text"},
		"nothing":            {"", "", "broke off"},
		"a closed stream":    {"", "\x88\x00", "before the program ended"},
		"a cut frame header": {"", "\x82", "broke off"},
	} {
		server := a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			head := c.head
			if head == "" {
				head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n" +
					"Sec-WebSocket-Accept: " + accept(r.Header.Get("Sec-WebSocket-Key")) + "\r\n\r\n"
			}
			fmt.Fprint(conn, head, c.frames)
		}))
		client := open(t, kube.Config{Kubeconfig: kubeconfig(t, server.URL, ca(a), `{token: t}`)})
		err := run(within(t, time.Minute), client, io.Discard, "x")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
}

// accept returns the answer to a key (RFC 6455, section 4.2.2).
func accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func TestExecToHasStderrAndExitCode(t *testing.T) {
	c := kubelet(t, newAuthority(t), func(_ *http.Request, stdout, stderr, status io.Writer) {
		_, _ = stdout.Write([]byte("out"))
		_, _ = stderr.Write([]byte("why"))
		_, _ = status.Write([]byte(`{"status":"Failure","message":"command terminated with exit code 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`))
	})
	var out, errOut bytes.Buffer
	err := c.ExecTo(within(t, time.Minute), "kube-system", "rail-agent-x", "rail-agent", []string{"x"}, &out, &errOut)
	if exit := (*kube.ExitError)(nil); !errors.As(err, &exit) || exit.Code != 7 || out.String() != "out" || errOut.String() != "why" {
		t.Errorf("%v, %q, %q", err, &out, &errOut)
	}
	wants(t, err, "exit code 7: why")
}

func TestLogOfAContainer(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-system/pods/rail-agent-x/log" {
			refuse(w, http.StatusNotFound, "NotFound", "no such pod")
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, r.URL.RawQuery)
	}))
	c := open(t, kube.Config{Kubeconfig: kubeconfig(t, server.URL, ca(a), `{token: t}`)})
	for want, o := range map[string]kube.LogOptions{
		"container=c&timestamps=true": {},
		"container=c&limitBytes=3&previous=true&sinceSeconds=60&tailLines=2&timestamps=true": {Since: time.Minute, Lines: 2, Bytes: 3, Previous: true},
	} {
		text, err := c.Log(within(t, time.Minute), "kube-system", "rail-agent-x", "c", o)
		if err != nil || string(text) != want {
			t.Errorf("%q, %v, not %q", text, err, want)
		}
	}
	_, err := c.Log(within(t, time.Minute), "kube-system", "other", "c", kube.LogOptions{})
	wants(t, err, "no such pod")
}
