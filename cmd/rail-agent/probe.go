package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// probeTime bounds the answer to a probe.
const probeTime = 8 * time.Second

func newProbe(a *agentFlags) *cobra.Command {
	var socket string
	var live bool
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Ask the agent of this node whether it is ready",
		Long: `Ask the agent of this node, by its socket, whether it is ready: it has installed
or uninstalled what it was told to, and has checked every record. With --live,
ask only whether it is still working. If not, the exit code is 1 and the reason
is printed. Kubelet's probes run this, because a port on the host's loopback may
belong to another process.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&socket, "socket", "", `path of the agent's socket; "agent.sock" in the first state directory when missing`)
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the agent is still working")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if socket == "" {
			socket = socketIn(a.stateDirs)
		}
		path := "/readyz"
		if live {
			path = "/healthz"
		}
		return askSocket(cmd.Context(), socket, path)
	}
	return cmd
}

// socketIn returns the path of the socket of the agent of these state directories.
func socketIn(stateDirs []string) string { return filepath.Join(stateDirs[0], "agent.sock") }

// askSocket returns the agent's answer as an error, nil if it is OK.
func askSocket(ctx context.Context, socket, path string) error {
	client := http.Client{Timeout: probeTime, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", strings.TrimSpace(string(text)))
	}
	return err
}
