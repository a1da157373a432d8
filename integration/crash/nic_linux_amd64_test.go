package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

const (
	nicName   = "ens12np0"
	spareName = "ens13np0"
)

// chained is the plugin of the chain, and prevResult its input there.
const (
	chained    = "rdma"
	prevResult = `{"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "pod"}], "ips": [{"address": "10.55.0.9/24", "interface": 0}]}`
)

// host is a node with two NICs, the cables' other ends, and the current pod.
// The MACs are always the same, so that a NIC that was destroyed with its pod,
// as a veth is, can be made again as it was.
type host struct {
	t          *testing.T
	node, wire *testnet.Netns
	pod        *testnet.Netns
	pods       int
	state, bin string
	plugin     string
	verb       string
	before     string         // the node's state with both NICs at home
	without    string         // and after the first was destroyed
	settings   map[string]any // of sriov, which not every driver has

	// Hooks for a host whose NICs have RDMA (rail); nil here.
	inside  bool                   // the node is the test's own namespace
	prepare func()                 // runs after a pod was made
	settle  func() (lost []string) // runs before the host is compared
	renew   func()                 // makes the host again after a loss
}

func newHost(t *testing.T, plugin, verb, bin string) *host {
	t.Helper()
	h := &host{
		t: t, node: testnet.NewNetns(t, "node"), wire: testnet.NewNetns(t, "wire"), plugin: plugin, verb: verb, bin: bin,
	}
	h.nic(spareName, 2)
	h.without = h.node.State()
	h.nic(nicName, 1)
	h.furnish()
	h.before = h.node.State()
	return h
}

// nic makes a NIC with a cable. If one of this name was destroyed with its pod,
// its cable's other end follows a while later.
func (h *host) nic(name string, number int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if _, err := link.ByName(h.wire.Netns, name+"-sw"); errors.Is(err, link.ErrNotFound) {
			break
		}
	}
	h.node.IP("link", "add", name, "mtu", "9000", "address", fmt.Sprintf("02:00:00:00:01:%02x", number), "type", "veth",
		"peer", "name", name+"-sw", "mtu", "9000", "address", fmt.Sprintf("02:00:00:00:02:%02x", number), "netns", h.wire.Name)
	h.node.IP("link", "set", name, "up")
	h.wire.IP("link", "set", name+"-sw", "up")
	for range 400 {
		if strings.Contains(h.node.IP("-6", "addr", "show", "dev", name, "-tentative"), "fe80:") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Fatalf("%s has no link-local address", name)
}

// furnish configures on the lent NIC everything that a move to a pod removes.
func (h *host) furnish() {
	gateway := "02:00:00:00:00:fe"
	if l, err := link.ByName(h.node.Netns, nicName); err != nil {
		h.t.Fatal(err)
	} else if l.IsIPoIB() {
		gateway = "80:00:00:48:fe:80:00:00:00:00:00:00:02:00:00:00:00:00:00:fe"
	}
	h.node.Batch(nil,
		"link property add dev "+nicName+" altname enp4s0np0",
		"link set "+nicName+" alias rail-1 txqueuelen 4321",
		"addr add 10.9.0.1/24 brd + dev "+nicName,
		"addr add fd00:9::1/64 dev "+nicName,
		"route add 10.20.0.0/16 via 10.9.0.254 metric 77",
		"route add default via 10.9.0.254 table 101",
		"neigh add 10.9.0.254 lladdr "+gateway+" nud permanent dev "+nicName)
	h.node.Sysctl("ipv4/conf/"+nicName+"/arp_ignore", "1")
}

// call is the call of the host's plugin for the current pod.
func (h *host) call(verb string) testnet.Call {
	return h.callFor(verb, fmt.Sprintf("c%d", h.pods), h.pod, nicName)
}

func (h *host) callFor(verb, id string, pod *testnet.Netns, nic string) testnet.Call {
	h.t.Helper()
	plugin := h.plugin
	if nic == spareName && plugin == chained {
		plugin = "host-device" // the chain has no plugin that makes an interface
	}
	conf := map[string]any{"cniVersion": "1.1.0", "name": "roce-net1", "type": plugin, "stateDir": h.state}
	if plugin == chained {
		conf["prevResult"] = json.RawMessage(prevResult)
	} else {
		conf["mtu"], conf["ipam"] = 4000, map[string]any{"type": "whereabouts", "range": "10.55.0.0/24", "store": "local"}
		conf["routing"], conf["arp"] = map[string]any{"mode": "source", "table": 1001}, "own"
	}
	maps.Copy(conf, map[string]map[string]any{"host-device": {"device": nic}, "macvlan": {"master": nic}, "ipoib": {"master": nic}, "sriov": {
		"device": nic, "vlan": 100, "vlanQoS": 5, "mac": "02:00:00:00:09:09", "spoofchk": "off", "trust": "on",
	}, "ib-sriov": {
		"device": nic, "runtimeConfig": map[string]any{"infinibandGUID": fmt.Sprintf("02:00:00:00:00:00:0b:%02x", nic[4])},
	}}[plugin])
	if plugin == "sriov" {
		maps.Copy(conf, h.settings)
	}
	text, err := json.Marshal(conf)
	if err != nil {
		h.t.Fatal(err)
	}
	return testnet.Call{
		Plugin: filepath.Join(h.bin, plugin), Verb: verb, ContainerID: id, IfName: "net1", Netns: "/run/netns/" + pod.Name,
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=apps;K8S_POD_NAME=" + id, Path: h.bin, Config: string(text),
	}
}

// traced makes the program for the harness from a call.
func (h *host) traced(c testnet.Call) program {
	h.t.Helper()
	p := program{
		args: []string{c.Plugin}, stdin: c.Config,
		env: append(os.Environ(), "CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ContainerID, "CNI_IFNAME="+c.IfName,
			"CNI_NETNS="+c.Netns, "CNI_ARGS="+c.Args, "CNI_PATH="+c.Path, "GOTRACEBACK=none"),
	}
	if !h.inside {
		p.netns = h.node
	}
	return p
}

func (h *host) begin() program {
	h.t.Helper()
	h.pods++
	h.state = filepath.Join(h.t.TempDir(), "state") // the first ADD makes all of it
	h.pod = testnet.NewNetns(h.t, "pod")
	if h.prepare != nil {
		h.prepare()
	}
	if h.verb == "DEL" {
		h.node.MustRun(h.call("ADD"))
	}
	return h.traced(h.call(h.verb))
}

// The recoveries.
const (
	byDEL     = "DEL"
	byLateDEL = "DEL without the netns"
	byADD     = "another pod's ADD"
	byGC      = "railctl gc"
	byAgent   = "rail-agent"
	byAgain   = "the same ADD again, and DEL"
)

// recover runs a recovery and compares the host.
func (h *host) recover(recovery string, o outcome) (lost []string) {
	h.t.Helper()
	want := h.before
	// An ADD that failed has rolled back everything itself, except one whose
	// last answer failed.
	if h.verb == "ADD" && strings.Contains(o.stdout, `"code"`) && o.at != "write stdout" {
		for _, r := range h.recorded() {
			lost = append(lost, "ADD failed, and "+r)
		}
	}
	run := func(c testnet.Call, may bool) {
		if _, err := h.node.Run(c); err != nil && !may {
			lost = append(lost, fmt.Sprintf("%s: %v", c.Verb, err))
		}
	}
	if slices.Contains([]string{byLateDEL, byADD, byGC, byAgent}, recovery) {
		if strings.Contains(h.pod.IP("-o", "link", "show"), "02:00:00:00:01:01") && h.plugin == "host-device" {
			want = h.without // the kernel destroys a veth with its netns
		}
		h.pod.Delete()
	} else {
		defer h.pod.Kill()
	}
	switch recovery {
	case byDEL, byLateDEL:
		run(h.call("DEL"), false)
	case byADD:
		h.byADDs(run)
	case byGC:
		cmd, out := h.command("railctl", "gc")
		if err := errors.Join(h.start(cmd), cmd.Wait()); err != nil {
			lost = append(lost, fmt.Sprintf("railctl gc: %v: %s", err, out))
		}
	case byAgent:
		if err := h.runAgent(); err != nil {
			lost = append(lost, err.Error())
		}
	case byAgain:
		run(h.call("ADD"), true) // refused if the first had succeeded
		run(h.call("DEL"), false)
	}
	if recovery == byDEL || recovery == byAgain { // the pod netns lives on
		for _, family := range []string{"-4", "-6"} {
			if rules := h.pod.IP(family, "rule", "show"); strings.Contains(rules, "lookup 1001") {
				lost = append(lost, "the pod still has a rule:\n"+rules)
			}
		}
	}
	if h.settle != nil {
		lost = append(lost, h.settle()...)
	}
	if d := h.node.Settled(want); d != "" {
		lost = append(lost, "the host is not as it was:\n"+d)
	}
	lost = append(lost, h.held()...)
	h.refresh(want, len(lost) > 0)
	return lost
}

// byADDs runs another pod's ADD and DEL. The kernel deletes a macvlan, or returns an
// IPoIB child, some time after its pod's end, for which an ADD does not wait: a later ADD
// ends that attachment.
func (h *host) byADDs(run func(c testnet.Call, may bool)) {
	h.t.Helper()
	for deadline := time.Now().Add(childEnd); ; time.Sleep(50 * time.Millisecond) {
		other := testnet.NewNetns(h.t, "other")
		run(h.callFor("ADD", "other", other, spareName), false)
		run(h.callFor("DEL", "other", other, spareName), false)
		other.Kill()
		if !slices.Contains([]string{"macvlan", "ipoib"}, h.plugin) || len(h.recorded()) == 0 || time.Now().After(deadline) {
			return
		}
	}
}

const childEnd = 10 * time.Second

// command makes a command of the node's with its state directory, and returns what it writes.
func (h *host) command(name string, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	cmd, out = exec.Command(filepath.Join(h.bin, name), append([]string{"--state-dir", h.state}, args...)...), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// start starts a command on the node.
func (h *host) start(cmd *exec.Cmd) error {
	if h.inside {
		return cmd.Start()
	}
	return h.node.Start(cmd)
}

// runAgent runs the agent until there is no attachment, or agentTime has
// passed.
func (h *host) runAgent() error {
	h.t.Helper()
	if len(h.recorded()) == 0 {
		return nil
	}
	cmd, log := h.command("rail-agent", "run", "--metrics", "off", "--socket", "off")
	if err := h.start(cmd); err != nil {
		h.t.Fatal(err)
	}
	for deadline := time.Now().Add(agentTime); len(h.recorded()) > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	err := cmd.Process.Signal(syscall.SIGTERM)
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("rail-agent: %w: %s", err, log.Bytes())
	}
	return nil
}

const agentTime = 10 * time.Second

// held returns the entries of the ledger and the address pool. The next ADD
// removes stale files of the pool, so only the entries after it count.
func (h *host) held() []string {
	h.t.Helper()
	held := h.recorded()
	pool := filepath.Join(h.state, "ipam")
	if len(testnet.Leftovers(h.t, pool)) == 0 {
		return held
	}
	c := h.callFor("ADD", "settle", h.wire, spareName)
	c.Plugin = filepath.Join(h.bin, "whereabouts")
	h.node.MustRun(c)
	h.node.MustRun(c.With("DEL"))
	for _, path := range testnet.Leftovers(h.t, pool) {
		held = append(held, "the pool has "+path)
	}
	return held
}

// recorded returns the records of the ledger.
func (h *host) recorded() (found []string) {
	h.t.Helper()
	l, err := ledger.Open(h.state)
	if err != nil {
		h.t.Fatal(err)
	}
	defer l.Close()
	records, errs := l.List()
	for _, r := range records {
		found = append(found, fmt.Sprintf("the ledger has %s, %s", r.Key, r.Phase))
	}
	for _, err := range errs {
		found = append(found, err.Error())
	}
	return found
}

// refresh restores the host for the next point.
func (h *host) refresh(is string, spoilt bool) {
	h.t.Helper()
	switch {
	case spoilt && h.renew != nil:
		h.renew()
		return
	case spoilt:
		*h = *newHost(h.t, h.plugin, h.verb, h.bin)
		return
	}
	if is == h.without {
		h.nic(nicName, 1)
		h.furnish()
		if d := h.node.Settled(h.before); d != "" {
			h.t.Fatalf("a NIC that was made again is another one:\n%s", d)
		}
	}
}
