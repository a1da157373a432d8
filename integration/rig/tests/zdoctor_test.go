//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// railNode is a node of eight rails with a pod that holds the first three, and, in shared mode, a
// pod with a macvlan on the fourth. railctl doctor finds nothing on it until a test plants a
// defect.
type railNode struct {
	*node
	trainer, guest *pod
	nodeFile       string
}

// Rails of a railNode.
const (
	lentRails   = 3 // by the trainer: 0, 1, 2
	macvlanRail = 3 // below the guest's macvlan
	freeRail    = 5 // on the host
	otherRail   = 6 // on the host
)

// newRailNode returns such a node. Its GID tables are small, because doctor reads each entry.
func newRailNode(t *testing.T, mode rdma.Mode) *railNode {
	s := &railNode{node: newRDMANode(t, mode, "gids=32"), nodeFile: filepath.Join(t.TempDir(), "node.yaml")}
	s.writeNodeFile("")
	t.Setenv(nodefile.PathEnv, s.nodeFile)
	s.up(rails)
	s.installed()
	s.trainer = s.pod("trainer")
	s.attachRails(s.trainer, lentRails)
	if mode == rdma.Shared {
		s.guest = s.pod("guest")
		s.MustRun(s.macvlan("ADD", s.guest, "guest"))
	}
	s.container(s.trainer, "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2", "NCCL_SOCKET_IFNAME==eth0")
	return s
}

// writeNodeFile writes the node file: all rails, and what is in more.
func (s *railNode) writeNodeFile(more string) {
	s.t.Helper()
	text := "paths: [\"/**\"]\n" + more + "rails:\n"
	for rail := range rails {
		text += fmt.Sprintf("- {id: %d, pci: %q}\n", rail, nicPCI(rail))
	}
	write(s.t, s.nodeFile, text)
	if err := os.Chmod(s.nodeFile, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

const binDir = "/opt/cni/bin"

// installed installs a plugin as rail-agent does: a short one, because doctor computes its sum.
func (s *railNode) installed() {
	s.t.Helper()
	if err := os.MkdirAll(binDir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = os.RemoveAll(binDir); _ = os.RemoveAll(install.DefaultDir) })
	_, err := install.Open(install.DefaultDir).Put(s.t.Context(), install.File{Path: binDir + "/rdma", Content: []byte("#!/bin/sh\nexit 1\n"), Mode: 0o755})
	if err != nil {
		s.t.Fatal(err)
	}
}

// macvlan returns the call for a macvlan on the NIC of the macvlanRail' rail, of the pod
// default/name.
func (s *railNode) macvlan(verb string, p *pod, name string) testnet.Call {
	s.t.Helper()
	c := p.call(verb, "net1", s.config(macvlanRail, map[string]any{
		"type": "macvlan", "device": nil, "master": nicName(macvlanRail), "rdma": "required",
		"ipam": map[string]any{"type": "whereabouts", "store": "local", "range": "172.31.40.0/24"},
	}))
	c.Plugin, c.Args = "macvlan", "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+name
	return c
}

// containers counts those that were started.
var containers int

// container starts a process that is the first of a container of the pod, with these
// variables. It sees all char devices of the machine. end ends it.
func (s *railNode) container(p *pod, variables ...string) (pid int, end func()) {
	s.t.Helper()
	return s.containerBy((*exec.Cmd).Start, p, variables...)
}

func (s *railNode) containerBy(start func(*exec.Cmd) error, p *pod, variables ...string) (pid int, end func()) {
	s.t.Helper()
	containers++
	cgroup := fmt.Sprintf("/sys/fs/cgroup/%064x", containers)
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		s.t.Fatal(err)
	}
	dir, err := os.Open(cgroup)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("ip", "netns", "exec", p.Name, "sleep", "100000")
	cmd.Env = append(os.Environ(), variables...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	return s.started(start, cmd, "sleep", func() { _ = os.Remove(cgroup) })
}

// started starts a program, and waits until it has this name. end ends it, once, and calls
// after.
func (s *railNode) started(start func(*exec.Cmd) error, cmd *exec.Cmd, name string, after func()) (pid int, end func()) {
	s.t.Helper()
	if err := start(cmd); err != nil {
		s.t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			after()
		}
	}
	s.t.Cleanup(end)
	s.await(name+" runs", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return err == nil && strings.TrimSpace(string(text)) == name
	})
	return cmd.Process.Pid, end
}

// startWithoutIPCLock starts a program that cannot get the capability IPC_LOCK.
func startWithoutIPCLock(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this function
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0)
		if err == nil {
			err = cmd.Start()
		}
		done <- err
	}()
	return <-done
}

// await waits until something is so.
func (s *railNode) await(what string, is func() bool) {
	s.t.Helper()
	if !testnet.Within(20*time.Second, is) {
		s.t.Fatalf("not within 20 s: %s", what)
	}
}

// limitMemlock sets the limit of locked memory of a process.
func (s *railNode) limitMemlock(pid int, bytes uint64) {
	s.t.Helper()
	if err := unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: bytes}, nil); err != nil {
		s.t.Fatal(err)
	}
}

// set writes a file of the NIC of a rail by which tests change it.
func (s *railNode) set(rail int, file, value string) {
	s.t.Helper()
	write(s.t, function(rail, file), value)
}

// judged returns what railctl doctor finds, as "object: evidence", and the facts that it
// misses, both by rule. On a busy machine a source may take longer than doctor waits: then
// doctor runs again, and must not have found anything that is not in want.
func (s *railNode) judged(want map[string]string, args ...string) (found, missing map[string][]string) {
	s.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; {
		out, errOut, code := s.railctl(append([]string{"doctor", "-o", "json"}, args...)...)
		found, missing = s.results(out, errOut, code)
		if !tooSlow(out) || time.Now().After(deadline) {
			return found, missing
		}
		for id, list := range found {
			if want[id] == "" {
				s.t.Errorf("without all facts %s found %q", id, list)
			}
		}
		s.t.Log("sources took too long; once more")
	}
}

// results returns the findings and the missing facts of a document that railctl has printed.
// It fails the test if the exit code is not that of the results.
func (s *railNode) results(out, errOut string, code int) (found, missing map[string][]string) {
	s.t.Helper()
	var d doctor.Document
	if err := json.Unmarshal([]byte(out), &d); err != nil || len(d.Results) == 0 {
		s.t.Fatalf("exit code %d: %v\n%s\n%s", code, err, errOut, out)
	}
	if want := doctor.ExitCode(d.Results, false); code != want || errOut != "" {
		s.t.Errorf("exit code %d, not %d, stderr %q", code, want, errOut)
	}
	found, missing = map[string][]string{}, map[string][]string{}
	for i := range d.Results {
		r := &d.Results[i]
		for _, x := range r.Findings {
			found[r.ID] = append(found[r.ID], x.Object+": "+x.Evidence)
		}
		if len(r.Missing) > 0 {
			missing[r.ID] = r.Missing
		}
	}
	return found, missing
}

// compare fails the test unless each rule of want has a finding with its text, and no other
// rule has one, and all facts are known but those of the rules in unknown.
func (s *railNode) compare(found, missing map[string][]string, want map[string]string, unknown ...string) {
	s.t.Helper()
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if !slices.ContainsFunc(found[id], func(f string) bool { return strings.Contains(f, want[id]) }) {
			s.t.Errorf("%s did not find %q: %q", id, want[id], found[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if want[id] == "" {
			s.t.Errorf("%s found %q", id, found[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		if !slices.Contains(unknown, id) {
			s.t.Errorf("%s misses %q", id, missing[id])
		}
	}
}

// in returns the same node for a subtest.
func (s *railNode) in(t *testing.T) *railNode {
	part := *s
	part.node = s.node.in(t)
	return &part
}

// planted plants each defect alone. The next run shows that the one before was undone, and
// the last one that all were.
func (s *railNode) planted(all []defect) {
	s.t.Helper()
	for _, d := range all {
		s.t.Run(d.name, func(t *testing.T) {
			s := s.in(t)
			undo := d.plant(s)
			defer undo()
			found, missing := s.judged(d.want)
			s.compare(found, missing, d.want, d.unknown...)
			t.Logf("%q", found)
		})
	}
	found, missing := s.judged(nil)
	s.compare(found, missing, nil)
}

// TestDoctorFindsDefectsOfANode plants what can be wrong on a node in shared mode, or with its
// pods. Each defect is found by its rule, and no other rule finds anything. The subtests share the
// node, which takes longer to make than a run.
func TestDoctorFindsDefectsOfANode(t *testing.T) {
	s := newRailNode(t, rdma.Shared)
	t.Run("none on a sound node", func(t *testing.T) { s.in(t).soundNode() })
	t.Run("planted", func(t *testing.T) { s.in(t).planted(need.Sample(t, 5, defects)) })
	t.Run("between nodes", func(t *testing.T) { s.in(t).betweenNodes() })
}

// TestDoctorFindsDefectsOfAnExclusiveNode does so in exclusive mode.
func TestDoctorFindsDefectsOfAnExclusiveNode(t *testing.T) {
	s := newRailNode(t, rdma.Exclusive)
	s.planted(need.Sample(t, 1, exclusiveDefects))
	// The rig has no API server with networks.
	f := s.collected(50 * time.Millisecond)
	text := s.config(macvlanRail, map[string]any{"type": "macvlan", "device": nil, "master": nicName(macvlanRail), "rdma": "required", "stateDir": nil})
	f.Configs.NADs = fact.Known([]fact.Config{{Kind: fact.NADConfig, Name: "default/roce", Text: text}}, "test")
	found, missing := s.judgedFacts(f)
	s.compare(found, missing, map[string]string{"CNI-MODE": "default/roce"})
}

// judgedFacts returns what railctl doctor --facts finds.
func (s *railNode) judgedFacts(f *fact.Facts, args ...string) (found, missing map[string][]string) {
	s.t.Helper()
	text, err := json.Marshal(f)
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.t.TempDir(), "facts.json")
	put(s, path, string(text))
	return s.results(s.railctl(append([]string{"doctor", "-o", "json", "--facts", path}, args...)...))
}

// betweenNodes compares the facts of two nodes. The rig has one, whose facts are collected before
// and after its addresses were exchanged.
func (s *railNode) betweenNodes() {
	s.t.Helper()
	addressed := func(verb, a, b string, host int) {
		s.Batch(nil, fmt.Sprintf("addr %s 10.5.0.%d/24 dev %s", verb, host, a), fmt.Sprintf("addr %s 10.6.0.%d/24 dev %s", verb, host, b))
	}
	cluster := func(nodes ...*fact.Facts) (found, missing map[string][]string) {
		const source = "test"
		return s.judgedFacts(&fact.Facts{Schema: fact.Schema, Cluster: &fact.Cluster{
			Nodes: nodes, Silent: fact.Known(map[string]string{}, source), Leases: fact.Known([]fact.Lease{}, source), Pods: fact.Known([]string{}, source),
		}})
	}
	// onHost are the facts of a node of this name, without its pods, whose addresses would be
	// on both nodes.
	onHost := func(name string) *fact.Facts {
		f := s.collected(time.Millisecond)
		f.Node, f.Pods = name, nil
		return f
	}
	addressed("add", nicName(freeRail), nicName(otherRail), 1)
	s.awaitGIDs(otherRail, func(n int) bool { return n >= 4 })
	first := onHost("a")
	addressed("del", nicName(freeRail), nicName(otherRail), 1)
	addressed("add", nicName(freeRail), nicName(otherRail), 2)
	same := onHost("b")
	addressed("del", nicName(freeRail), nicName(otherRail), 2)
	addressed("add", nicName(otherRail), nicName(freeRail), 2)
	exchanged := onHost("b")
	addressed("del", nicName(otherRail), nicName(freeRail), 2)
	found, missing := cluster(first, same)
	s.compare(found, missing, nil)
	found, missing = cluster(first, exchanged)
	s.compare(found, missing, map[string]string{"RAIL-SWAP": "node b: rail 5 has the subnet 10.6.0.0/24, which is the subnet of rail 6"})

	// A pod's address, also on the NIC below its macvlan.
	s.IP("addr", "add", "172.31.40.1/24", "dev", nicName(macvlanRail))
	found, missing = cluster(s.collected(time.Millisecond))
	s.compare(found, missing, map[string]string{"IPAM-DUP": "address 172.31.40.1: it is on ens14np0 of node "})
	s.IP("addr", "del", "172.31.40.1/24", "dev", nicName(macvlanRail))
	found, missing = cluster(s.collected(time.Millisecond))
	s.compare(found, missing, nil)
}

// soundNode runs the doctor many times, which finds nothing. Each run of planted does so too, but
// for its defect.
func (s *railNode) soundNode() {
	s.t.Helper()
	runs := need.Either(6, 100)
	for i := range runs {
		if i%3 == 0 || need.Full() {
			found, missing := s.judged(nil)
			s.compare(found, missing, nil)
			continue
		}
		for _, r := range rule.Judge(doctor.Rules(), s.collected(50*time.Millisecond)) {
			if len(r.Findings)+len(r.Missing) > 0 {
				s.t.Errorf("%s: %+v, missing %q", r.ID, r.Findings, r.Missing)
			}
		}
	}
}
