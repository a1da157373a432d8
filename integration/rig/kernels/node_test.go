//go:build kernels

package kernels

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kernels/facts"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func TestMain(m *testing.M) {
	if os.Getenv(rig.Mark) == "" {
		fmt.Fprintln(os.Stderr, "these tests take over the machine's NICs, and run in the rig's virtual machine only: make test-rig RIG=5.10")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The PCI slots of the NICs that every machine of the rig has. Those with the
// same last digit reach each other.
const (
	first  = 11
	second = 12
	spare  = 21
)

// pci returns the PCI address of the NIC in a slot.
func pci(slot int) string { return fmt.Sprintf("0000:00:%02x.0", slot) }

// node is the machine, and a state directory.
type node struct {
	t *testing.T
	*testnet.Netns
	state string
}

// newNode returns the machine, on which NICs are as an administrator may have
// set them.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t, testnet.Here(t), filepath.Join(t.TempDir(), "state")}
	for key, value := range map[string]string{"accept_dad": "0", "router_solicitations": "0"} {
		n.Sysctl("ipv6/conf/default/"+key, value)
	}
	for _, slot := range []int{first, second, spare} {
		n.furnish(slot)
	}
	return n
}

// in returns the same node for a subtest.
func (n *node) in(t *testing.T) *node {
	part := *n
	part.t = t
	return &part
}

// fact records what the test has found out on this kernel, for the table in
// docs/reference/kernels.md. It fails the test if the table says something else, unless
// that is about to be written (make kernels-table).
func (n *node) fact(key, value string) {
	n.t.Helper()
	if n.t.Failed() {
		return
	}
	n.t.Logf("fact %s: %s", key, value)
	if known := n.known(); os.Getenv("RIG_FACTS") != "new" && known[key] != value {
		n.t.Errorf("docs/reference/kernels.md says %q of %s, and it is %q: run make kernels-table", known[key], key, value)
	}
}

// known returns the facts of the running kernel. Of a newer one than any that has been
// looked at, those of the newest of these are expected.
func (n *node) known() map[string]string {
	n.t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		n.t.Fatal(err)
	}
	parts := strings.SplitN(string(release), ".", 3)
	linux := strings.Join(parts[:min(len(parts), 2)], ".")
	known, ok := facts.OfKernel(linux)
	if last := facts.Kernels(); !ok && os.Getenv("RIG") == "newest" {
		linux = last[len(last)-1]
		n.t.Logf("Linux %s is expected to do as %s", bytes.TrimSpace(release), linux)
		known, ok = facts.OfKernel(linux)
	}
	if !ok {
		n.t.Fatalf("nothing is known of Linux %s", release)
	}
	return known
}

// onHost returns the name of the NIC in a slot, "" while it is in a pod. It is
// that of sysfs, which every kernel has.
func onHost(slot int) string {
	entries, _ := os.ReadDir("/sys/bus/pci/devices/" + pci(slot) + "/net")
	if len(entries) == 0 {
		return ""
	}
	return entries[0].Name()
}

func nic(slot int) string { return fmt.Sprintf("ens%d", slot) }

func altname(slot int) string { return fmt.Sprintf("rail%d-of-leaf-7", slot) }

// furnish names the NIC in a slot after it, and configures it.
func (n *node) furnish(slot int) {
	n.t.Helper()
	was, name := onHost(slot), nic(slot)
	if was == "" {
		n.t.Fatalf("the NIC %s is not on the host", pci(slot))
	}
	for _, part := range []string{"ipv4", "ipv6"} {
		n.Sysctl(part+"/conf/"+was+"/forwarding", "0") // its directory exists
	}
	commands := []string{"link set " + was + " down"}
	if was != name {
		commands = append(commands, "link set "+was+" name "+name)
	}
	if !strings.Contains(n.IP("link", "show", was), altname(slot)) {
		commands = append(commands, "link property add dev "+name+" altname "+altname(slot))
	}
	n.Batch(nil, append(commands,
		"addr flush dev "+name,
		fmt.Sprintf("link set %s mtu 4000 txqueuelen 777 alias rail-%d", name, slot),
		fmt.Sprintf("addr add 10.%d.0.1/24 brd + dev %s", slot, name),
		fmt.Sprintf("addr add fd00:%d::1/64 dev %s", slot, name),
		"link set "+name+" up",
		fmt.Sprintf("route replace 10.%d.0.0/16 via 10.%d.0.254 metric 77", 100+slot, slot),
		fmt.Sprintf("neigh replace 10.%d.0.254 lladdr 02:00:00:00:00:fe nud permanent dev %s", slot, name))...)
	n.Sysctl("ipv4/conf/"+name+"/arp_ignore", "1")
	n.await("the carrier of "+name, func() bool {
		text, _ := os.ReadFile("/sys/class/net/" + name + "/operstate")
		return strings.TrimSpace(string(text)) == "up"
	})
}

func (n *node) await(what string, done func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("still waiting for %s", what)
		}
	}
}

// config returns a configuration for the NIC in a slot, changed by the pairs in
// more; a nil value removes the key.
func (n *node) config(slot int, more map[string]any) string {
	n.t.Helper()
	conf := map[string]any{"cniVersion": "1.1.0", "name": fmt.Sprintf("net-%d", slot), "type": "host-device", "device": nic(slot), "stateDir": n.state}
	maps.Copy(conf, more)
	maps.DeleteFunc(conf, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// addressed returns the configuration of a network whose pods have addresses.
func (n *node) addressed(slot int, more map[string]any) string {
	all := map[string]any{"ipam": map[string]any{"type": "whereabouts", "store": "local", "range": "172.31.1.0/24"}}
	maps.Copy(all, more)
	return n.config(slot, all)
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

func (p *pod) call(verb, ifName, config string) testnet.Call {
	var conf struct{ Type string }
	_ = json.Unmarshal([]byte(config), &conf) // it is ours
	return testnet.Call{
		Plugin: conf.Type, Verb: verb, ContainerID: p.container, IfName: ifName,
		Netns: "/run/netns/" + p.Name, Config: config, Args: "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.container,
		Path: os.Getenv("RAIL_CNI_BIN"), // the rig has no others for arm64
	}
}

// checked returns the call of CHECK after an ADD with this result.
func (p *pod) checked(ifName, config string, result []byte) testnet.Call {
	var conf map[string]any
	_ = json.Unmarshal([]byte(config), &conf)
	conf["prevResult"] = json.RawMessage(result)
	text, _ := json.Marshal(conf)
	return p.call("CHECK", ifName, string(text))
}

func (n *node) railctl(args ...string) string {
	n.t.Helper()
	out, err := exec.Command(filepath.Join(testnet.Bin(n.t), "railctl"), append(args, "--state-dir", n.state)...).CombinedOutput()
	if err != nil {
		n.t.Errorf("railctl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

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
