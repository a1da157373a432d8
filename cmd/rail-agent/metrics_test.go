package main

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// hostLab is a lab in the machine's own network namespace, whose loopback the
// test shares.
func hostLab(t *testing.T) *lab {
	t.Helper()
	return &lab{t: t, state: filepath.Join(scratch.Dir(t), "state")}
}

// listen listens on a free port of loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// probe runs "rail-agent probe" in the same way as the kubelet.
func (l *lab) probe(args ...string) (string, error) {
	l.t.Helper()
	cmd := exec.Command(filepath.Join(testnet.Bin(l.t), "rail-agent"), append([]string{"probe", "--state-dir", l.state}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTakenMetricsPortDoesNotEndTheAgent(t *testing.T) {
	l := hostLab(t)
	taken := listen(t)
	a := l.launch("--metrics", taken.Addr().String())
	await(t, "the agent's word", 10*time.Second, func() bool { return len(a.said("reason=MetricsUnavailable")) == 1 })
	await(t, "the first look", 10*time.Second, func() bool {
		code, _ := a.get("/healthz")
		return code == http.StatusOK
	})
	code, body := a.get("/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, taken.Addr().String()) || !strings.Contains(body, "in use") {
		t.Errorf("/readyz: %d, %s", code, body)
	}
	if out, err := l.probe(); err == nil || !strings.Contains(out, "in use") {
		t.Errorf("probe: %v, %s", err, out)
	}
	if out, err := l.probe("--live"); err != nil {
		t.Errorf("probe --live: %v, %s", err, out)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the metrics", 20*time.Second, func() bool {
		answer, err := http.Get("http://" + taken.Addr().String() + "/metrics")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return err == nil && strings.Contains(string(text), "rail_cni_agent_info")
	})
	await(t, "readiness", 5*time.Second, func() bool {
		_, err := l.probe()
		return err == nil
	})
	if n := len(a.said("reason=Metrics")); n != 2 {
		t.Errorf("it told %d times of its metrics", n)
	}
	if a.end(syscall.SIGTERM); a.cmd.ProcessState.ExitCode() != 0 {
		t.Error(a.cmd.ProcessState)
	}
	if out, err := l.probe("--live"); err == nil {
		t.Errorf("an agent that has ended is alive: %s", out)
	}
}

func TestMetricsAddressThatIsNoneIsRefused(t *testing.T) {
	a := hostLab(t).launch("--metrics", "9400")
	select {
	case <-a.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	if a.cmd.ProcessState.ExitCode() != 1 || len(a.said("--metrics")) == 0 {
		t.Error(a.cmd.ProcessState, a.said(""))
	}
}

func TestMetricsThatAreOpenToTheNetworkAreToldOf(t *testing.T) {
	a := newLab(t).start("--metrics", "0.0.0.0:9400")
	if n := len(a.said("on the network can read the metrics")); n != 1 {
		t.Errorf("it told %d times", n)
	}
}
