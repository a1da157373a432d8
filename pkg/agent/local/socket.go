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

// probeTime is the time limit for the answer to a probe.
const probeTime = 8 * time.Second

// SocketIn returns the path of the agent's socket in a state directory.
func SocketIn(stateDir string) string { return filepath.Join(stateDir, "agent.sock") }

// ProbeReady asks the agent at the socket whether it is ready. If the agent is not ready, the error
// has the reason.
func ProbeReady(ctx context.Context, socket string) error { return askSocket(ctx, socket, "/readyz") }

// ProbeLive asks the agent at the socket whether it is still working. If the agent is not working,
// the error has the reason.
func ProbeLive(ctx context.Context, socket string) error { return askSocket(ctx, socket, "/healthz") }

// Get sends a GET request for path to the agent at the socket. The caller must close the body of
// the answer.
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

// askSocket asks the agent for path. It returns nil if the answer has the status 200, and otherwise
// the answer as an error.
func askSocket(ctx context.Context, socket, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	answer, err := Get(ctx, socket, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return failure.From(err, failure.NotAvailable, "no rail-agent answers at %s", socket).
			Cure("start rail-agent, or name its socket with --socket or its state directory with --state-dir")
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

// FactsTime is the longest time that the agent collects facts for a client. If some sources hang,
// the agent answers after this time with the facts that it has. So a client must wait longer than
// FactsTime. Usually the agent needs little more than a second. If the cores of the node are busy,
// it can need more than six seconds.
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
