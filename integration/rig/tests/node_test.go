//go:build rig

package tests

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// drives is set if a test on the host starts machines (build tag machines).
var drives bool

func TestMain(m *testing.M) {
	if os.Getenv(rig.Mark) == "" && !drives {
		fmt.Fprintln(os.Stderr, "these tests unload drivers and unplug NICs, and run in the rig's virtual machine only: make test-rig")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The NICs of the users' nodes, by rail; rail 0 is the first.
func nicName(rail int) string { return fmt.Sprintf("ens%dnp0", 11+rail) }
func nicPCI(rail int) string  { return fmt.Sprintf("0000:00:%02x.0", 11+rail) }
func altName(rail int) string { return fmt.Sprintf("enp%ds0np0", 4+rail) }

const rails = 8

// node is a host netns with NICs, and a state directory.
type node struct {
	t *testing.T
	*testnet.Netns
	initNet *testnet.Netns // where the kernel puts NICs whose netns died
	spare   string         // a NIC that no test lends for itself
	state   string
}

// newNode returns the machine's own netns, with NICs as the kernel finds them.
func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeWith(t, "")
}

// newNodeWith is newNode with parameters of the NICs' driver.
func newNodeWith(t *testing.T, parameters string) *node {
	t.Helper()
	reload(t, parameters)
	here := testnet.Here(t)
	return &node{t: t, Netns: here, initNet: here, spare: "ens21np0", state: filepath.Join(t.TempDir(), "state")}
}

// in returns the same node for a subtest.
func (n *node) in(t *testing.T) *node {
	part := *n
	part.t = t
	return &part
}

// slots are those of the NICs that the tests use: the rails of one node, one
// NIC of another, and the one with virtual functions. Each further NIC would
// cost every test the time to read its state.
const slots = "slots=11,12,13,14,15,16,17,18,21,0 "

// reload reloads the NICs' driver: the kernel makes the NICs again, wherever
// the test before left them.
func reload(t *testing.T, parameters string) {
	t.Helper()
	// Defaults of new interfaces.
	for key, value := range map[string]string{"accept_dad": "0", "router_solicitations": "0"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/"+key, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := kmod.ReloadNICs(slots + parameters); err != nil {
		t.Fatal(err)
	}
}

// up configures the first NICs like those of the users' nodes: up, with MTU
// 9000 and an altname.
func (n *node) up(count int) {
	n.t.Helper()
	var commands, names []string
	for rail := range count {
		names = append(names, nicName(rail))
		commands = append(commands,
			fmt.Sprintf("link set %s mtu 9000 up", nicName(rail)),
			fmt.Sprintf("link property add dev %s altname %s", nicName(rail), altName(rail)))
	}
	n.Batch(nil, commands...)
	n.carrier(names...)
}

// carrier waits until the kernel reports the carrier of these links, which
// takes up to a second (linkwatch).
func (n *node) carrier(names ...string) {
	n.t.Helper()
	down := ""
	if !testnet.Within(30*time.Second, func() bool {
		links, err := link.Links(n.Netns.Netns)
		if err != nil {
			n.t.Fatal(err)
		}
		first := slices.IndexFunc(links, func(l *link.Link) bool { return slices.Contains(names, l.Name) && !l.OperUp })
		if first >= 0 {
			down = links[first].Name
		}
		return first < 0
	}) {
		n.t.Fatalf("%s has no carrier", down)
	}
}

// furnish sets on the first NICs everything that an administrator may have set,
// and that a stay in a pod removes.
func (n *node) furnish(count int) {
	n.t.Helper()
	n.up(count)
	var commands []string
	for rail := range count {
		name, net := nicName(rail), 10+rail
		commands = append(commands,
			fmt.Sprintf("link set %s alias rail-%d-of-leaf-7 txqueuelen 4321 allmulticast on", name, rail),
			fmt.Sprintf("addr add 10.%d.0.1/24 brd + dev %s", net, name),
			fmt.Sprintf("addr add 10.%d.0.7/24 dev %s", net, name),
			fmt.Sprintf("addr add fd00:%d::1/64 dev %s", net, name),
			fmt.Sprintf("route add 10.%d.0.0/16 via 10.%d.0.254 metric 77 mtu 4000", 100+rail, net),
			fmt.Sprintf("route add default via 10.%d.0.254 table %d", net, 100+rail),
			fmt.Sprintf("route add fd00:%d::/48 via fd00:%d::fe", 100+rail, net),
			fmt.Sprintf("neigh add 10.%d.0.254 lladdr 02:00:00:00:00:fe nud permanent dev %s", net, name))
		n.Sysctl("ipv4/conf/"+name+"/arp_ignore", "1")
		n.Sysctl("ipv4/conf/"+name+"/rp_filter", "2")
		n.Sysctl("ipv6/conf/"+name+"/accept_ra", "0")
	}
	n.Batch(nil, commands...)
}

// config returns a configuration of host-device for the NIC of a rail, changed
// by the pairs in more; a nil value removes the key.
func (n *node) config(rail int, more map[string]any) string {
	n.t.Helper()
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": fmt.Sprintf("roce-net%d", rail+1), "type": "host-device",
		"device": nicName(rail), "stateDir": n.state,
	}
	maps.Copy(conf, more)
	maps.DeleteFunc(conf, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// pod is a pod netns and the name of its container.
type pod struct {
	*testnet.Netns
	container string
}

func (n *node) pod(container string) *pod {
	n.t.Helper()
	return &pod{testnet.NewNetns(n.t, container), container}
}

// call returns the call that attaches the NIC of the configuration to the pod,
// or detaches it.
func (p *pod) call(verb, ifName, config string) testnet.Call {
	return testnet.Call{
		Plugin: "host-device", Verb: verb, ContainerID: p.container, IfName: ifName,
		Netns: "/run/netns/" + p.Name, Config: config,
	}
}

func podName(rail int) string { return "net" + strconv.Itoa(rail+1) }

// gc runs `railctl gc` until it has ended all attachments of dead pods. It waits only briefly for the kernel, which may
// be busy with what a pod left.
func (n *node) gc() {
	n.t.Helper()
	var out []byte
	done := testnet.Within(30*time.Second, func() bool {
		var err error
		out, err = exec.Command("ip", "netns", "exec", n.Name, filepath.Join(testnet.Bin(n.t), "railctl"), "gc", "--state-dir", n.state).CombinedOutput()
		return err == nil
	})
	if !done {
		n.t.Fatalf("railctl gc:\n%s", out)
	}
}

// records returns the records of the node's ledger.
func (n *node) records() []*ledger.Record {
	n.t.Helper()
	l, err := ledger.Open(n.state)
	if err != nil {
		n.t.Fatal(err)
	}
	defer l.Close()
	records, errs := l.List()
	if len(errs) > 0 {
		n.t.Fatal(errs)
	}
	return records
}

// untouched fails the test unless the node is as before, without a record.
func (n *node) untouched(before string) {
	n.t.Helper()
	if d := n.Settled(before); d != "" {
		n.t.Errorf("the host is not as it was:\n%s", d)
	}
	for _, r := range n.records() {
		n.t.Errorf("a record is left: %s, phase %s", r.Holder(), r.Phase)
	}
}

// fallen waits until the kernel has moved these NICs to init_net, under any
// names.
func (n *node) fallen(loans []loan) {
	n.t.Helper()
	away := 0
	if !testnet.Within(10*time.Second, func() bool {
		links, err := link.Links(n.initNet.Netns)
		if err != nil {
			n.t.Fatal(err)
		}
		away = slices.IndexFunc(loans, func(l loan) bool {
			return !slices.ContainsFunc(links, func(k *link.Link) bool { return k.ParentDev == nicPCI(l.rail) })
		})
		return away < 0
	}) {
		n.t.Fatalf("%s has not returned", nicName(loans[away].rail))
	}
}

// times are repeated measurements of one value.
type times []time.Duration

func (t times) String() string {
	slices.SortFunc(t, func(a, b time.Duration) int { return cmp.Compare(a, b) })
	return fmt.Sprintf("median %4d ms, worst %4d ms of %d", t[(len(t)-1)/2].Milliseconds(), t[len(t)-1].Milliseconds(), len(t))
}

// modes returns the RDMA modes, or, in "make test", one of them. It is for tests of what is the
// same in both: other tests of one mode stay.
func modes(t *testing.T) []rdma.Mode {
	t.Helper()
	return need.Sample(t, 1, []rdma.Mode{rdma.Exclusive, rdma.Shared})
}

// rounds returns the number of repetitions of a measurement: n, or 1 in "make test",
// unless RIG_ROUNDS is set.
func rounds(t *testing.T, n int) int {
	t.Helper()
	text := os.Getenv("RIG_ROUNDS")
	switch {
	case text == "" && need.Full():
		return n
	case text == "":
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("RIG_ROUNDS=%q is no number of rounds", text)
	}
	return n
}

func readLink(t *testing.T, path string) string {
	t.Helper()
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(target)
}
