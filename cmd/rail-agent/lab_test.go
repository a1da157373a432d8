package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// lab is a separate node on which the agent runs.
type lab struct {
	t          *testing.T
	node, wire *testnet.Netns
	state      string
	path       string // CNI_PATH, "" is testnet's
	alone      bool   // the agent does not see the machine's other namespaces
}

func newLab(t *testing.T) *lab {
	t.Helper()
	return &lab{t: t, node: testnet.NewNetns(t, "node"), wire: testnet.NewNetns(t, "wire"), state: filepath.Join(scratch.Dir(t), "state")}
}

// call makes a call of a plugin for a pod, with an address of the node's own
// pool. nic is the lent NIC, or the macvlan's master.
func (l *lab) call(plugin, verb, nic string, pod *testnet.Netns, ifName string) testnet.Call {
	l.t.Helper()
	key := map[string]string{"host-device": "device", "macvlan": "master"}[plugin]
	return testnet.Call{
		Plugin: plugin, Verb: verb, ContainerID: pod.Name, IfName: ifName, Netns: "/run/netns/" + pod.Name, Path: l.path,
		Config: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"rail-%s","type":%q,%q:%q,"stateDir":%q,"ipam":{"type":"whereabouts","range":"10.9.0.0/24"}}`,
			plugin, plugin, key, nic, l.state),
	}
}

func (l *lab) records() []*ledger.Record {
	l.t.Helper()
	d, err := ledger.Open(l.state)
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Close()
	records, errs := d.List()
	if len(errs) > 0 {
		l.t.Fatal(errs)
	}
	return records
}

// busy is how long an operation may take on a machine under load.
const busy = time.Minute

// await waits until done returns true, and returns how long that took. It fails the test after the
// time limit.
func await(t *testing.T, what string, limit time.Duration, done func() bool) time.Duration {
	t.Helper()
	limit = max(limit, busy)
	for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		if done() {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("still waiting for %s after %v", what, limit)
		}
	}
}

// running is a running agent.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	socket string
	ended  chan struct{}

	mu  sync.Mutex
	log []string
}

// start runs the agent in the lab's node, and ends it with the test.
func (l *lab) start(args ...string) *running {
	l.t.Helper()
	a := l.launch(args...)
	await(l.t, "the agent to be ready", 10*time.Second, func() bool {
		code, _ := a.get("/readyz")
		return code == http.StatusOK
	})
	return a
}

func (l *lab) launch(args ...string) *running {
	l.t.Helper()
	need.Root(l.t)
	a := &running{t: l.t, socket: filepath.Join(l.state, "agent.sock"), ended: make(chan struct{})}
	command := []string{filepath.Join(testnet.Bin(l.t), "rail-agent"), "run", "--state-dir", l.state, "--metrics", "off"}
	if l.node != nil { // else the machine's own namespace
		if l.alone {
			command = append([]string{"sh", "-c", `mount -t tmpfs none /run/netns && exec "$@"`, "sh"}, command...)
		}
		command = append([]string{"ip", "netns", "exec", l.node.Name}, command...) // in a mount namespace of its own
	}
	command = append(command, args...)
	a.cmd = exec.Command(command[0], command[1:]...)
	a.cmd.Env = append(os.Environ(), "KUBECONFIG=", "GOGC=100") // tests bound its memory as users have it; make test sets another
	read, write := io.Pipe()
	a.cmd.Stderr = write
	if err := a.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		for lines := bufio.NewScanner(read); lines.Scan(); {
			a.mu.Lock()
			a.log = append(a.log, lines.Text())
			a.mu.Unlock()
		}
	}()
	go func() {
		_ = a.cmd.Wait() // the exit code is checked elsewhere, or it was killed
		_ = write.Close()
		<-logged // including its last lines
		close(a.ended)
	}()
	l.t.Cleanup(func() {
		a.end(syscall.SIGTERM)
		if l.t.Failed() {
			l.t.Logf("the agent said:\n%s", strings.Join(a.said(""), "\n"))
		}
	})
	return a
}

// end sends a signal and waits for the agent's end.
func (a *running) end(signal syscall.Signal) {
	a.t.Helper()
	_ = a.cmd.Process.Signal(signal) // it may have ended
	select {
	case <-a.ended:
	case <-time.After(30 * time.Second):
		_ = a.cmd.Process.Kill()
		a.t.Errorf("the agent does not end by %v", signal)
	}
}

// said returns the lines of the log that contain text.
func (a *running) said(text string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []string
	for _, line := range a.log {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// get sends a request to the agent's socket.
func (a *running) get(path string) (code int, body string) {
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", a.socket)
		},
	}}
	answer, err := c.Get("http://agent" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

func (a *running) status() local.Status {
	a.t.Helper()
	var s local.Status
	code, body := a.get("/status")
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != http.StatusOK {
		a.t.Fatal(code, body, err)
	}
	return s
}

// metric returns the sum of a metric's values over all lines that contain all the labels, and the
// number of these lines.
func (a *running) metric(name string, labels ...string) (sum float64, lines int) {
	a.t.Helper()
	code, body := a.get("/metrics")
	if code != http.StatusOK {
		a.t.Fatal(code, body)
	}
next:
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			a.t.Fatalf("%q: %v", line, err)
		}
		sum += v
		lines++
	}
	return sum, lines
}
