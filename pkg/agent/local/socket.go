package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// probeTime bounds the answer to a probe.
const probeTime = 8 * time.Second

// SocketIn returns the path of an agent's socket in a state directory.
func SocketIn(stateDir string) string { return filepath.Join(stateDir, "agent.sock") }

// ProbeReady asks the agent at the socket whether it is ready. The error is why it is
// not.
func ProbeReady(ctx context.Context, socket string) error { return askSocket(ctx, socket, "/readyz") }

// ProbeLive asks the agent at the socket whether it is still working. The error is
// why it is not.
func ProbeLive(ctx context.Context, socket string) error { return askSocket(ctx, socket, "/healthz") }

// Get asks the agent at the socket for a path. The caller closes the answer's body.
func Get(ctx context.Context, socket, path string) (*http.Response, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(request)
}

// askSocket returns the agent's answer as an error, nil if it is OK.
func askSocket(ctx context.Context, socket, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	answer, err := Get(ctx, socket, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return failure.From(err, failure.NotAvailable, "no rail-agent answers at %s", socket).
			Cure("start it, or name its socket with --socket or its state directory with --state-dir")
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	return err
}

// FactsTime limits how long the agent collects facts for a client. If some sources hang, the agent
// then answers with the facts that it has, so a client must wait longer than FactsTime. The facts
// usually take little more than a second, and more than six on a node whose cores are busy.
const FactsTime = 15 * time.Second

// CopyFacts asks the agent at the socket for the facts of the node, a document of package doctor,
// and writes them to out.
func CopyFacts(ctx context.Context, socket string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, FactsTime+3*time.Second)
	defer cancel()
	answer, err := Get(ctx, socket, "/facts")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
		return errors.Join(err, fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text))))
	}
	_, err = io.Copy(out, answer.Body)
	return err
}
