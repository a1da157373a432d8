package collect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// asked is a variable. If it is set, this process prints facts instead of running tests. Its value
// has the options as JSON.
const asked = "COLLECT_TEST_STATE_DIR"

func TestMain(m *testing.M) {
	if how := os.Getenv(behaves); how != "" {
		readerProcess(how)
		os.Exit(0)
	}
	if dir := os.Getenv(asked); dir != "" {
		facts := collect.Node(context.Background(), collect.Options{StateDir: dir, Sample: -1})
		if err := json.NewEncoder(os.Stdout).Encode(facts); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// lab is a node with two NICs. The pod web-0 has one of them, and has a macvlan on the other.
type lab struct {
	node, wire, pod *testnet.Netns
	state           string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{node: testnet.NewNetns(t, "node"), wire: testnet.NewNetns(t, "wire"), pod: testnet.NewNetns(t, "pod"), state: filepath.Join(scratch.Dir(t), "state")}
	l.node.NIC("ens12np0", l.wire)
	l.node.NIC("ens2f0", l.wire)
	l.attach("net1", `{"cniVersion": "1.1.0", "name": "roce-net1", "type": "host-device", "device": "ens12np0", "stateDir": "`+l.state+`",
		"ipam": {"type": "whereabouts", "store": "local", "range": "172.31.1.0/24", "gateway": "172.31.1.1"}}`)
	l.attach("net2", `{"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0", "mtu": 4000, "stateDir": "`+l.state+`"}`)
	return l
}

func (l *lab) attach(ifName, config string) {
	plugin := "host-device"
	if ifName == "net2" {
		plugin = "macvlan"
	}
	l.node.MustRun(testnet.Call{
		Plugin: plugin, Verb: "ADD", ContainerID: "c-web-0", IfName: ifName, Netns: l.pod.Path,
		Args: "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=0815", Config: config,
	})
}

// facts returns the facts of the lab's node.
func (l *lab) facts(o collect.Options) (f *fact.Facts) {
	o.StateDir = l.state
	l.node.Inside(func() { f = collect.Node(context.Background(), o) })
	return f
}

// failed calls do for each fact that failed, with the place of the fact and its error.
func failed(facts any, do func(place, why string)) { walk(reflect.ValueOf(facts), "", do) }

func walk(v reflect.Value, place string, do func(place, why string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), place, do)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), fmt.Sprintf("%s[%d]", place, i), do)
		}
	case reflect.Struct:
		if why := v.FieldByName("Error"); why.IsValid() && why.String() != "" {
			do(place, why.String())
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				walk(v.Field(i), place+"."+v.Type().Field(i).Name, do)
			}
		}
	}
}

func TestNodeWithAPodHasItsFacts(t *testing.T) {
	l := newLab(t)
	f := l.facts(collect.Options{Version: "v1", Node: "node-a", Sample: 50 * time.Millisecond})
	failed(f, func(place, why string) {
		if !strings.Contains(why, "no kubeconfig") && !strings.Contains(why, "rail-agent does not run") {
			t.Errorf("%s is not known: %s", place, why)
		}
	})
	if f.Schema != fact.Schema || f.Node != "node-a" || f.Version != "v1" || time.Since(f.Taken) > time.Minute {
		t.Errorf("schema %q, node %q, version %q, taken %v", f.Schema, f.Node, f.Version, f.Taken)
	}
	if len(f.NICs.List.Value) != 1 { // a macvlan's master without a device is none of the node's NICs
		t.Fatalf("NICs: %+v", f.NICs.List)
	}
	n := f.NICs.List.Value[0]
	if n.Name != "ens12np0" || n.Holder != "default/web-0" || !n.AdminUp.Value || !n.Carrier.Value || n.MTU.Value != 9000 || n.ManagedBy.Value != "" ||
		!slices.Equal(n.Addresses.Value, []string{"172.31.1.2/24"}) || !n.Rising.OK() || n.Rising.Value.Seconds <= 0 || !n.CarrierDown.OK() {
		t.Errorf("the lent NIC: %+v", n)
	}
	if len(f.Ledger.Attachments.Value) != 2 {
		t.Fatalf("attachments: %+v", f.Ledger.Attachments)
	}
	for _, a := range f.Ledger.Attachments.Value {
		if a.Pod != "default/web-0" || a.UID != "0815" || !a.Alive || !a.InPod || a.Phase != "lent" {
			t.Errorf("attachment: %+v", a)
		}
	}
	if len(f.Pods) != 1 || f.Pods[0].Object() != "pod default/web-0" {
		t.Fatalf("pods: %+v", f.Pods)
	}
	var names []string
	for _, i := range f.Pods[0].Interfaces.Value {
		names = append(names, fmt.Sprintf("%s on %s, MTU %d, up %t, carrier %t, %v", i.Name, i.NIC, i.MTU, i.Up, i.Carrier, i.Addresses))
	}
	slices.Sort(names)
	want := []string{"net1 on ens12np0, MTU 9000, up true, carrier true, [172.31.1.2/24]", "net2 on ens2f0, MTU 4000, up true, carrier true, []"}
	if !slices.Equal(names, want) {
		t.Errorf("interfaces %q, not %q", names, want)
	}
}

func TestChangesOfThePodAreFacts(t *testing.T) {
	l := newLab(t)
	l.wire.IP("link", "set", "ens12np0-sw", "down")
	l.pod.IP("link", "set", "net1", "mtu", "1500")
	l.pod.IP("link", "del", "net2")
	l.pod.Exec("sh", "-c", "echo 2 > /proc/sys/net/ipv4/conf/net1/arp_ignore; echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter")
	f := l.facts(collect.Options{Sample: -1})
	if n := f.NICs.List.Value[0]; n.Carrier.Value || !n.AdminUp.Value || n.MTU.Value != 1500 || n.CarrierDown.Value == 0 || n.Rising.OK() {
		t.Errorf("the lent NIC: %+v", n)
	}
	for _, a := range f.Ledger.Attachments.Value {
		if a.InPod != (a.IfName == "net1") {
			t.Errorf("attachment: %+v", a)
		}
	}
	if i := f.Pods[0].Interfaces.Value; len(i) != 1 || i[0].Carrier || i[0].ARPIgnore != 2 || i[0].RPFilter != 1 {
		t.Errorf("interfaces: %+v", i)
	}
	l.pod.Delete()
	f = l.facts(collect.Options{Sample: -1})
	if len(f.Pods) != 0 || len(f.Ledger.Attachments.Value) != 2 || f.Ledger.Attachments.Value[0].Alive {
		t.Errorf("after the death of the pod: pods %+v, attachments %+v", f.Pods, f.Ledger.Attachments)
	}
}

// container runs a shell script in the pod's netns until the test ends. The script runs in a cgroup
// with the name of a container. It must end with "exec".
func (l *lab) container(t *testing.T, id, script string, env ...string) int {
	t.Helper()
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if _, v2 := os.Stat("/sys/fs/cgroup/cgroup.procs"); v2 == nil {
		hierarchies = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	if err != nil || len(hierarchies) == 0 {
		t.Fatalf("no cgroups below /sys/fs/cgroup: %v", err)
	}
	dir := filepath.Join(filepath.Dir(hierarchies[len(hierarchies)-1]), "cri-containerd-"+id+".scope")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); os.Remove(dir) != nil && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond) // the kernel is still removing the process
		}
	})
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read go; "+script)
	cmd.Env = env
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.pod.Inside(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	_, told := in.Write([]byte("go\n"))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0), told); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(comm) == "sleep\n" {
			return pid
		}
	}
	t.Fatal("the container's process did not start")
	return 0
}

func TestProcessInAPodIsAContainer(t *testing.T) {
	l := newLab(t)
	id := fmt.Sprintf("%064x", os.Getpid())
	pid := l.container(t, id, "ulimit -S -l 64; ulimit -H -l 128; exec setpriv --reuid 1234 --bounding-set -all,+ipc_lock sleep 600", "PATH="+os.Getenv("PATH"), "NCCL_DEBUG=INFO", "TOKEN=x")
	have := l.facts(collect.Options{Sample: -1}).Pods[0].Containers
	want := []fact.Container{{
		Name: id[:12], UID: 1234, Memlock: fact.Memlock{Process: "sleep", PID: pid, Soft: 64 << 10, Hard: 128 << 10},
		Permitted: 1 << 14, Env: map[string]string{"NCCL_DEBUG": "INFO"},
	}}
	if !have.OK() || len(have.Value) != 1 {
		t.Fatalf("containers: %+v", have)
	}
	have.Value[0].CharDevices = nil // of the machine that runs the test
	if !reflect.DeepEqual(have.Value, want) {
		t.Errorf("containers %+v, not %+v", have.Value, want)
	}
}

func TestUnreadableRecordIsAFact(t *testing.T) {
	l := newLab(t)
	if err := os.WriteFile(filepath.Join(l.state, "attachments", "x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := l.facts(collect.Options{Sample: -1})
	if !f.Ledger.Unreadable.OK() || len(f.Ledger.Unreadable.Value) != 1 || !strings.Contains(f.Ledger.Unreadable.Value[0], "x.json") {
		t.Errorf("unreadable: %+v", f.Ledger.Unreadable)
	}
}

// TestOrdinaryUserKnowsLessAndNothingElse compares each fact that an ordinary user can read with
// the same fact that root has read.
func TestOrdinaryUserKnowsLessAndNothingElse(t *testing.T) {
	need.Root(t)
	state := filepath.Join(scratch.Dir(t), "state")
	if err := os.MkdirAll(filepath.Join(state, "attachments"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(state), filepath.Dir(filepath.Dir(state))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, user := printed(t, state, 0), printed(t, state, 65534)
	unknown := map[string]string{}
	failed(user, func(place, why string) { unknown[place] = why })
	for _, place := range []string{".NICs.List", ".NICs.Problems", ".Ledger.Attachments", ".Ledger.Unreadable", ".Ledger.Changed"} {
		if !strings.Contains(unknown[place], "root") {
			t.Errorf("an ordinary user has %s: %q", place, unknown[place])
		}
	}
	if len(unknown) > 25 {
		t.Errorf("an ordinary user has too few facts: %v", unknown)
	}
	compare(t, "", reflect.ValueOf(root), reflect.ValueOf(user))
}

// compare fails the test if both have a fact, but with different values.
func compare(t *testing.T, place string, a, b reflect.Value) {
	switch {
	case a.Kind() == reflect.Pointer:
		if !a.IsNil() && !b.IsNil() {
			compare(t, place, a.Elem(), b.Elem())
		}
	case a.Kind() != reflect.Struct || place == ".Taken":
	case a.FieldByName("Source").IsValid():
		if a.FieldByName("Error").String() == "" && b.FieldByName("Error").String() == "" && !reflect.DeepEqual(a.FieldByName("Value").Interface(), b.FieldByName("Value").Interface()) {
			t.Errorf("%s is %v for root and %v for an ordinary user", place, a.FieldByName("Value"), b.FieldByName("Value"))
		}
	default:
		for i := range a.NumField() {
			compare(t, place+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	}
}

// printed returns the facts that a process of the user reads, in this process' netns.
func printed(t *testing.T, state string, uid uint32) *fact.Facts {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Dir, cmd.Env = "/", []string{asked + "=" + state, testnet.OpenNodeFileEnv}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	f, err := fact.Decode(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// silent accepts connections and never answers.
func silent(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	return l
}

func TestSilentAgentAndServerCostOnlyTheirFacts(t *testing.T) {
	need.Root(t)
	dir := scratch.Dir(t)
	silent(t, "unix", filepath.Join(dir, "agent.sock"))
	server := silent(t, "tcp", "127.0.0.1:0")
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "http://` + server.Addr().String() + `"}}],
		"users": [{"name": "u", "user": {"token": "x"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.WriteFile(kubeconfig, []byte(text), 0o600), os.MkdirAll(filepath.Join(root, "var/lib/kubelet"), 0o700)); err != nil {
		t.Fatal(err)
	}
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	f := collect.Node(t.Context(), collect.Options{StateDir: filepath.Join(dir, "none"), Socket: filepath.Join(dir, "agent.sock"), Client: client, Sample: -1, Root: root})
	for name, why := range map[string]string{
		"running": f.Agent.Running.Error, "version": f.Agent.Version.Error, "NRI": f.Agent.NRI.Error,
		"allocatable": f.Kubelet.Allocatable.Error, "labels": f.Kubelet.Labels.Error, "NADs": f.Configs.NADs.Error, "networks": f.Configs.Networks.Error,
	} {
		if why == "" {
			t.Errorf("%s is known, although nobody answers", name)
		}
	}
	if !f.NICs.List.OK() || !f.NICs.Others.OK() || !f.Host.Kernel.OK() || !f.Ledger.Attachments.OK() || !f.Configs.Files.OK() {
		t.Errorf("what is on the node is not known: %+v %+v %+v", f.NICs.List, f.Host.Kernel, f.Ledger)
	}
}

func TestNoAgentIsNoRunningAgent(t *testing.T) {
	dir := t.TempDir()
	f := collect.Node(t.Context(), collect.Options{StateDir: dir, Sample: -1})
	if !f.Agent.Running.OK() || f.Agent.Running.Value || f.Agent.Version.OK() {
		t.Errorf("agent: %+v", f.Agent)
	}
}

func TestEndOfTheContextEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := collect.Node(ctx, collect.Options{StateDir: t.TempDir(), Sample: time.Hour})
	for _, n := range f.NICs.List.Value {
		if n.Rising.OK() {
			t.Errorf("%s: counters that take an hour are known: %+v", n.Name, n.Rising)
		}
	}
}
