//go:build rig

package tests

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/verbs"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// sharer is a pod with a macvlan on a NIC whose port others use too.
type sharer struct {
	*pod
	call testnet.Call
	end  verbs.End
	vars []string // what rail-agent hands to it
}

// TestProgramsTakeThePodsOwnGID has pods on one port of Soft-RoCE, which come and go. With the
// variables of rail-agent UCX connects with the pod's own GID. Without them, UCX and perftest take
// the first of the table, whichever pod has it.
func TestProgramsTakeThePodsOwnGID(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "rdma=0")
	if err := kmod.SoftRoCE(); errors.Is(err, kmod.ErrNoSoftRoCE) {
		need.Skip(t, err)
	} else if err != nil {
		t.Fatal(err)
	}
	n.up(1)
	n.Exec("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", nicName(0))
	pods := map[string]*sharer{}
	for _, c := range []struct{ step, server, client, first string }{
		{step: "+a"},
		{step: "+b"},
		{"+c", "a", "c", "a"},
		{"-a", "c", "b", "b"}, // a's GID leaves a hole
		{"+d", "d", "b", "d"}, // d takes it
	} {
		name := c.step[1:]
		if c.step[0] == '-' {
			n.MustRun(pods[name].call.With("DEL"))
			delete(pods, name)
		} else {
			pods[name] = n.share(name)
		}
		if c.first == "" {
			continue
		}
		if index, first := n.firstOfUCX(pods["c"]), pods[c.first].end.GID; index != first {
			t.Errorf("%s: without variables UCX takes GID %d in pod c, and pod %s has %d", c.step, index, c.first, first)
		}
		n.connect(pods[c.server], pods[c.client])
	}
	// Soft-RoCE sends by any GID of its table. A driver of hardware refuses it.
	out, err := n.perftest(pods["d"], pods["c"])
	if m := perftestGID.FindStringSubmatch(out); err != nil || m == nil || m[1] != strconv.Itoa(pods["d"].end.GID) {
		t.Errorf("without -x ib_write_bw does not take GID %d, %v:\n%s", pods["d"].end.GID, err, out)
	}
}

// share makes a pod with a macvlan on the first NIC.
func (n *node) share(name string) *sharer {
	n.t.Helper()
	p := n.pod(name)
	s := &sharer{pod: p, call: p.call("ADD", "net1", n.config(0, map[string]any{
		"type": "macvlan", "device": nil, "master": nicName(0), "rdma": "required", "ipam": map[string]any{"type": "whereabouts", "range": "172.31.1.0/24"},
	}))}
	s.call.Plugin = "macvlan"
	n.MustRun(s.call)
	s.end = n.end(p)
	records := slices.DeleteFunc(n.records(), func(r *ledger.Record) bool { return r.ContainerID != p.container })
	tree, err := pcie.ReadNICs("/sys")
	if err != nil {
		n.t.Fatal(err)
	}
	rails, err := publish.Describe(&inventory.NICList{Tree: tree}, records, railinfo.PodRef{})
	if err != nil {
		n.t.Fatal(err)
	}
	settings := railinfo.SettingsOf(nil)
	for _, v := range rails.Env(settings) {
		s.vars = append(s.vars, v.Name+"="+v.Value)
	}
	return s
}

// inside returns a command in the network namespace of the pod.
func (s *sharer) inside(ctx context.Context, vars []string, args ...string) *exec.Cmd {
	words := slices.Concat([]string{"netns", "exec", s.Name, "env"}, vars, args)
	return exec.CommandContext(ctx, "ip", words...)
}

var (
	ucxFirst    = regexp.MustCompile(`rxe0:1 using gid_index (\d+)`)
	ucxAddress  = regexp.MustCompile(`dgid=::ffff:(\S+) sgid_index=(\d+)`)
	perftestGID = regexp.MustCompile(`GID index +: (\d+)`)
)

// firstOfUCX returns the index of the GID that UCX takes in the pod without variables.
func (n *node) firstOfUCX(s *sharer) int {
	n.t.Helper()
	out, err := s.inside(n.t.Context(), []string{"UCX_LOG_LEVEL=debug"}, "ucx_info", "-d").CombinedOutput()
	m := ucxFirst.FindSubmatch(out)
	if err != nil || m == nil {
		n.t.Fatalf("ucx_info names no GID: %v\n%s", err, out)
	}
	index, _ := strconv.Atoi(string(m[1]))
	return index
}

// connect has two pods connect by UCX with their variables, and fails the test unless each does it
// with its own GID, to that of the other. UCX 1.13.1 gets no further on Soft-RoCE: no message of
// ucx_perftest arrives.
func (n *node) connect(server, client *sharer) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	var said [2]locked
	command := func(i int, s *sharer, more ...string) *exec.Cmd {
		vars := append([]string{"UCX_TLS=rc_verbs,ud_verbs", "UCX_LOG_LEVEL=debug"}, s.vars...)
		c := s.inside(ctx, vars, append([]string{"ucx_perftest", "-p", "18515", "-t", "tag_lat", "-n", "1", "-w", "0"}, more...)...)
		c.Stdout, c.Stderr = &said[i], &said[i]
		return c
	}
	first, second := command(0, server), command(1, client, server.end.Address)
	if err := first.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.eventually("ucx_perftest listens", func() bool { return verbs.Listens(first.Process.Pid) })
	if err := second.Start(); err != nil {
		n.t.Fatal(err)
	}
	ends := []*sharer{server, client}
	for i, s := range ends {
		var m []string
		n.eventually("UCX connects", func() bool { m = ucxAddress.FindStringSubmatch(said[i].String()); return m != nil })
		if other := ends[1-i].end.Address; m[1] != other || m[2] != strconv.Itoa(s.end.GID) {
			n.t.Errorf("UCX in the pod %s (GID %d, %v) connects by GID %s to %s, not to %s", s.container, s.end.GID, s.vars, m[2], m[1], other)
		}
	}
	cancel()
	_, _ = first.Wait(), second.Wait()
}

// perftest runs ib_write_bw in two pods without the index of a GID, and returns what the client
// says.
func (n *node) perftest(server, client *sharer) (string, error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"ib_write_bw", "-F", "-d", "rxe0", "-n", "5", "-s", "64"}
	var said locked
	first := server.inside(ctx, nil, args...)
	first.Stdout = &said
	if err := first.Start(); err != nil {
		return "", err
	}
	n.eventually("ib_write_bw listens", func() bool { return verbs.Listens(first.Process.Pid) })
	out, err := client.inside(ctx, nil, append(args, server.end.Address)...).CombinedOutput()
	cancel()
	_ = first.Wait()
	return string(out), err
}

// locked is a buffer that a program writes while a test reads it.
type locked struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
