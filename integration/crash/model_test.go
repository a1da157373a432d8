package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/integration/devices/fakekubelet"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

const (
	modelNICs = 8
	modelPods = 20
	atOnce    = 4  // operations of a step, each on another pod
	sequence  = 24 // steps on average
)

// fate is the model's knowledge of an attachment.
type fate string

const (
	attached fate = "attached" // its ADD said so
	unknown  fate = "unknown"  // a process that worked on it was killed, or its DEL failed
	orphaned fate = "orphaned" // its pod is gone
)

// modeled is an attachment in the model. A missing one is free.
type modeled struct {
	ledger.Key
	nic     int
	pod     *modelPod
	fate    fate
	addr    string
	result  []byte
	renamed string // the pod's own name for the interface
}

// modelPod is a pod. It gets a new ID each time it is made again.
type modelPod struct {
	*testnet.Netns
	id string
}

// world is a node with its pods, and its model. The node's netns is that of
// this process. While a step's operations run the model does not change.
type world struct {
	t      *testing.T
	node   *testnet.Netns
	wire   *testnet.Netns
	state  string
	agent  *keeper  // nil when none runs
	whole  string   // the node's state with all NICs at home
	home   []string // and the snapshot of each NIC
	pods   [modelPods]*modelPod
	serial int
	held   map[ledger.Key]*modeled
	done   map[string]int // what was done, counted
}

func modelNIC(nic int) string { return fmt.Sprintf("rail%d", nic) }

func modelMAC(nic int) string { return fmt.Sprintf("02:00:00:00:03:%02x", nic) }

func newWorld(t *testing.T, done map[string]int) *world {
	w := &world{t: t, node: testnet.Here(t), wire: testnet.NewNetns(t, "wire"), held: map[ledger.Key]*modeled{}, done: done}
	// No generated addresses, so that the test need not wait for them.
	w.node.Sysctl("ipv6/conf/default/addr_gen_mode", "1")
	for nic := range modelNICs {
		w.makeNIC(nic)
	}
	// The kernel reports a carrier with a delay (linkwatch).
	for w.whole = w.node.State(); strings.Contains(w.whole, "NO-CARRIER"); w.whole = w.node.State() {
		time.Sleep(20 * time.Millisecond)
	}
	for nic := range modelNICs {
		w.home = append(w.home, w.snapshot(nic))
	}
	return w
}

// abandon removes what a violation leaves.
func (w *world) abandon() {
	w.restartAgent(0, syscall.SIGKILL, false).do()
	for _, p := range w.pods {
		if p != nil {
			p.Delete()
		}
	}
	links, err := link.Links(w.node.Netns)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range links {
		if l.Name == "lo" {
			continue
		}
		if err := link.Delete(w.node.Netns, l.Index); err != nil {
			w.t.Error(err)
		}
	}
}

// makeNIC makes a NIC as it is on the host, always with the same MAC. It gets
// its name and MAC last: until then an agent that looks for a destroyed one
// does not mistake it for that.
func (w *world) makeNIC(nic int) {
	name := modelNIC(nic)
	w.node.Batch(nil,
		fmt.Sprintf("link add new mtu 9000 type veth peer name %s-sw mtu 9000 netns %s", name, w.wire.Name),
		fmt.Sprintf("link property add dev new altname enp%ds0np0", nic),
		fmt.Sprintf("addr add 10.7.%d.1/24 dev new", nic),
		"link set new up", "link set new name "+name,
		"link set "+name+" address "+modelMAC(nic))
	w.wire.IP("link", "set", name+"-sw", "up")
}

// snapshot returns the NIC's state on the host, "" if it is not there.
func (w *world) snapshot(nic int) string {
	w.t.Helper()
	l, err := link.ByName(w.node.Netns, modelNIC(nic))
	if errors.Is(err, link.ErrNotFound) {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	v, err := link.ReadView(w.node.Netns, l.Index)
	if err != nil {
		return err.Error() // it is on its way
	}
	s, err := nicstate.Take(w.node.Netns, v)
	if err != nil {
		return err.Error()
	}
	s.Taken, s.Index = time.Time{}, 0
	s.Routes, s.Connected, s.HopLinks, s.Nexthops = nil, nil, nil, nil // they name indexes; the end of a sequence compares the routes
	for i := range s.Addresses {
		s.Addresses[i].Raw = nil // contains the time when it was set
	}
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// modelCall is one execution of the plugin.
type modelCall struct {
	verb  string
	key   ledger.Key
	nic   int
	pod   *modelPod
	keys  map[string]any // more of the configuration
	fuse  time.Duration  // until it is killed; 0 is never
	alone bool           // its children are not killed with it
}

// run runs the plugin.
func (w *world) run(c modelCall) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "net-" + modelNIC(c.nic), "type": "host-device", "device": modelNIC(c.nic), "stateDir": w.state,
		"ipam": map[string]any{"type": "whereabouts", "range": "10.60.0.0/24", "store": "local"},
	}
	for k, v := range c.keys {
		conf[k] = v
	}
	netns := ""
	if c.pod != nil {
		netns = "/run/netns/" + c.pod.Name
	}
	return execute(testnet.Bin(w.t), "host-device", c, netns, conf)
}

// execute runs a plugin of the directory bin for a call, with a configuration.
// A killed one returns errKilled; by then its children have ended as well.
func execute(bin, plugin string, c modelCall, netns string, conf map[string]any) ([]byte, error) {
	text, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(bin, plugin))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.verb, "CNI_CONTAINERID="+c.key.ContainerID, "CNI_IFNAME="+c.key.IfName,
		"CNI_NETNS="+netns, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE="+podNamespace+";K8S_POD_NAME="+c.key.ContainerID, "CNI_PATH="+bin)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if c.fuse > 0 {
		target := -cmd.Process.Pid
		if c.alone {
			target = cmd.Process.Pid
		}
		defer time.AfterFunc(c.fuse, func() { _ = syscall.Kill(target, syscall.SIGKILL) }).Stop()
	}
	err = cmd.Wait()
	awaitGroup(cmd.Process.Pid)
	if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return nil, errKilled
	}
	if err == nil {
		return stdout.Bytes(), nil
	}
	said := &types.Error{}
	if json.Unmarshal(stdout.Bytes(), said) == nil && said.Code != 0 {
		return nil, said
	}
	return nil, fmt.Errorf("%w: %s%s", err, stdout.Bytes(), stderr.Bytes())
}

// podNamespace is that of all pods.
const podNamespace = fakekubelet.Namespace

var errKilled = errors.New("killed")

// awaitGroup waits for the end of the processes that a program has left behind,
// and reaps them: this process is the first of its PID namespace.
func awaitGroup(leader int) {
	for {
		_, err := syscall.Wait4(-leader, nil, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.ECHILD) && errors.Is(syscall.Kill(-leader, 0), syscall.ESRCH) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// keeper is a running rail-agent.
type keeper struct {
	cmd  *exec.Cmd
	log  bytes.Buffer
	long time.Duration // how long its end may take
}

func (w *world) startAgent() *keeper {
	w.done["agents"]++
	return startKeeper(w.t, w.state, "--socket", "off")
}

// startKeeper starts a rail-agent that keeps the node of a state directory, with more flags.
func startKeeper(t *testing.T, state string, flags ...string) *keeper {
	args := append([]string{"run", "--state-dir", state, "--metrics", "off"}, flags...)
	k := &keeper{long: stepTime, cmd: exec.Command(filepath.Join(testnet.Bin(t), "rail-agent"), args...)}
	k.cmd.Env = append(os.Environ(), "KUBECONFIG=", "GOGC=100") // hostile pods bound its memory, as nodes have it
	k.cmd.Stderr, k.cmd.SysProcAttr = &k.log, &syscall.SysProcAttr{Setpgid: true}
	if err := k.cmd.Start(); err != nil {
		t.Error(err)
	}
	return k
}

// end ends the agent. After SIGTERM it must end by itself.
func (k *keeper) end(signal syscall.Signal) (violation string) {
	late := time.AfterFunc(k.long, func() { _ = k.cmd.Process.Kill() })
	_ = k.cmd.Process.Signal(signal) // what it ended by is seen below
	err := k.cmd.Wait()
	late.Stop()
	awaitGroup(k.cmd.Process.Pid)
	status, is := k.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if is && status.Signaled() && status.Signal() == signal || signal == syscall.SIGTERM && err == nil {
		return ""
	}
	return fmt.Sprintf("rail-agent, by %v: %v: %s", signal, err, k.log.Bytes())
}
