//go:build rig

package tests

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

const agentAddress = "127.0.0.1:9400"

// keep starts rail-agent on the node, and ends it with the test, which fails if
// the agent logged anything but the texts in may.
func (n *node) keep(may ...string) (log func() string) {
	n.t.Helper()
	return n.keepWith(nil, may...)
}

// keepWith is keep with more flags of rail-agent.
func (n *node) keepWith(flags []string, may ...string) (log func() string) {
	n.t.Helper()
	file, err := os.Create(filepath.Join(n.t.TempDir(), "log"))
	if err != nil {
		n.t.Fatal(err)
	}
	log = func() string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			n.t.Fatal(err)
		}
		return string(text)
	}
	cmd := exec.Command(filepath.Join(testnet.Bin(n.t), "rail-agent"),
		append([]string{"run", "--state-dir", n.state, "--metrics", agentAddress}, flags...)...)
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err := cmd.Wait()
		complains := slices.ContainsFunc(strings.Split(log(), "\n"), func(line string) bool {
			return strings.Contains(line, "level=WARN") &&
				!slices.ContainsFunc(may, func(reason string) bool { return strings.Contains(line, "reason="+reason) })
		})
		if err != nil || n.t.Failed() || complains {
			n.t.Errorf("rail-agent: %v\n%s", err, log())
		}
	})
	if !testnet.Within(time.Minute, func() bool { // it writes to the disk first, which others may use
		answer, err := http.Get("http://" + agentAddress + "/readyz")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}) {
		n.t.Fatal("rail-agent does not become ready")
	}
	return log
}

// arrival has the times when the kernel had returned a NIC, and when it was
// usable.
type arrival struct{ back, usable time.Time }

// arrivals follows the return of the NICs of all rails, by the kernel's own
// notices.
func (n *node) arrivals(notices <-chan netlink.LinkUpdate) map[string]*arrival {
	n.t.Helper()
	home, ofRail := map[string]*arrival{}, map[string]string{}
	for rail := range rails {
		ofRail[nicPCI(rail)] = nicName(rail)
	}
	usable := 0
	for limit := time.After(20 * time.Second); usable < rails; {
		select {
		case u := <-notices:
			a := u.Attrs()
			name := ofRail[a.ParentDev]
			if name == "" || u.Header.Type != syscall.RTM_NEWLINK {
				continue
			}
			at := home[name]
			if at == nil {
				at = &arrival{back: time.Now()}
				home[name] = at
			}
			if at.usable.IsZero() && a.Name == name && a.RawFlags&syscall.IFF_UP != 0 {
				at.usable = time.Now()
				usable++
			}
		case <-limit:
			n.t.Fatalf("%d of %d NICs returned: %v", usable, rails, home)
		}
	}
	return home
}

func TestAgentBringsNICsOfDeadPodsHome(t *testing.T) {
	for _, mode := range modes(t) {
		count := map[rdma.Mode]int{rdma.Exclusive: 10, rdma.Shared: 3}[mode]
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.furnish(rails)
			before, devices := n.State(), n.allRDMA()
			n.keep()
			var kernel, lag, each, all times
			for round := range rounds(t, count) {
				p := n.pod("pod1")
				for rail := range rails {
					c := p.call("ADD", podName(rail), n.config(rail, nil))
					c.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=trainer"
					n.MustRun(c)
				}
				if round == 0 {
					n.countersOfPods()
				}
				notices, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
				if err := netlink.LinkSubscribe(notices, done); err != nil {
					t.Fatal(err)
				}
				died := time.Now()
				p.Kill()
				home := n.arrivals(notices)
				close(done)
				var back, usable time.Time
				for _, a := range home {
					each = append(each, a.usable.Sub(a.back))
					if a.back.After(back) {
						back = a.back
					}
					if a.usable.After(usable) {
						usable = a.usable
					}
				}
				kernel, lag, all = append(kernel, back.Sub(died)), append(lag, usable.Sub(back)), append(all, usable.Sub(died))
				testnet.Within(10*time.Second, func() bool { return len(n.records()) == 0 })
				n.untouched(before)
				if now := n.allRDMA(); !maps.Equal(now, devices) {
					t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, devices)
				}
			}
			t.Logf("%d NICs, from the pod's death to the last in init_net: %v", rails, kernel)
			t.Logf("from the last in init_net to all named and up:           %v", lag)
			t.Logf("from each in init_net to it named and up:                %v", each)
			t.Logf("from the pod's death to all named and up:                %v", all)
		})
	}
}

// metrics returns the agent's metrics of RDMA devices, by lines.
func (n *node) metrics() []string {
	n.t.Helper()
	all := n.scrape()
	if !slices.Contains(all, "rail_cni_rdma_incomplete 0\n") {
		n.t.Error("some counters could not be read")
	}
	return slices.DeleteFunc(all, func(line string) bool { return !strings.HasPrefix(line, "rdma_") })
}

// hasLabels reports whether a line of the metrics has all of the labels, which are in alphabetical
// order.
func hasLabels(line string, labels ...string) bool {
	return !slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(line, label) })
}

// scrape returns all lines of the agent's metrics.
func (n *node) scrape() []string {
	n.t.Helper()
	answer, err := http.Get("http://" + agentAddress + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(text)))
}

// countersOfHost fails the test unless the agent exports the counters of the
// rail's RDMA device as those of a NIC without a pod.
func (n *node) countersOfHost(rail int) {
	n.t.Helper()
	of := fmt.Sprintf(`ifname="mlx5_%d",`, rail)
	lines := slices.DeleteFunc(n.metrics(), func(l string) bool { return !strings.Contains(l, of) })
	pods := slices.ContainsFunc(lines, func(l string) bool {
		return !hasLabels(l, fmt.Sprintf("net_dev_name=%q", nicName(rail))) || strings.Contains(l, "pod_name=")
	})
	if len(lines) == 0 || pods {
		n.t.Errorf("mlx5_%d, which is on the host:\n%s", rail, strings.Join(lines, ""))
	}
}

// countersOfPods fails the test unless the agent exports the counters of each
// RDMA device, with the pod that has its NIC.
func (n *node) countersOfPods() {
	n.t.Helper()
	lines := n.metrics()
	for rail := range rails {
		with := func(labels ...string) []string {
			return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
				return !hasLabels(l, labels...)
			})
		}
		device := fmt.Sprintf(`ifname="mlx5_%d",`, rail)
		all := with(device)
		own := with(device, fmt.Sprintf("net_dev_name=%q", podName(rail)), `pod_name="trainer",pod_namespace="default"`)
		if len(own) == 0 || len(own) != len(all) {
			n.t.Errorf("mlx5_%d: %d lines have the pod's labels, of\n%s", rail, len(own), strings.Join(all, ""))
		}
		if rail == 0 && len(own) > 0 {
			n.t.Logf("%d metrics of mlx5_0, as %s", len(own), own[0])
		}
	}
}
