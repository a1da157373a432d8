package plans_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
)

// bench is a node with one configured NIC, a pod, and the far end of the NIC's
// cable.
type bench struct {
	t               *testing.T
	node, pod, wire *testnet.Netns
	state           string
	path            string // CNI_PATH, where a test has its own
}

const nicName = "ens12np0"

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		t: t, node: testnet.NewNetns(t, "node"), pod: testnet.NewNetns(t, "pod"), wire: testnet.NewNetns(t, "wire"),
		state: filepath.Join(t.TempDir(), "state"),
	}
	b.node.NIC(nicName, b.wire)
	b.node.AddAltname(nicName, "enp4s0np0")
	return b
}

// furnish configures on the NIC everything that a move to a pod removes.
func (b *bench) furnish() {
	b.node.Batch(nil,
		"link set "+nicName+` alias "rail 1 of leaf 7" txqueuelen 4321 allmulticast on`,
		"addr add 10.9.0.1/24 brd + dev "+nicName,
		"addr add 10.9.0.7/24 dev "+nicName,
		"addr add fd00:9::1/64 dev "+nicName,
		"addr add fd00:9::7/64 dev "+nicName,
		"route add 10.20.0.0/16 via 10.9.0.254 metric 77 mtu 4000",
		"route add default via 10.9.0.254 table 101",
		"route add fd00:20::/48 via fd00:9::fe",
		"neigh add 10.9.0.254 lladdr 02:00:00:00:00:fe nud permanent dev "+nicName)
	b.node.Sysctl("ipv4/conf/"+nicName+"/arp_ignore", "1")
	b.node.Sysctl("ipv4/conf/"+nicName+"/rp_filter", "2")
	b.node.Sysctl("ipv6/conf/"+nicName+"/accept_ra", "0")
	b.node.Sysctl("ipv4/neigh/"+nicName+"/ucast_solicit", "5")
}

// config returns a configuration of host-device for the bench's NIC, changed by
// the pairs of keys and values in more; a nil value removes the key.
func (b *bench) config(more map[string]any) string {
	return b.configOf(map[string]any{
		"cniVersion": "1.1.0", "name": "roce-net1", "type": "host-device", "device": nicName, "stateDir": b.state,
	}, more)
}

func (b *bench) macvlanConfig(more map[string]any) string {
	return b.configOf(map[string]any{
		"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "master": nicName, "stateDir": b.state,
	}, more)
}

func (b *bench) configOf(base, more map[string]any) string {
	b.t.Helper()
	maps.Copy(base, more)
	maps.DeleteFunc(base, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(base)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// call returns the call of a plugin for container c1 and interface net1.
func (b *bench) call(verb, config string) testnet.Call {
	b.t.Helper()
	var conf netconf.Common
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		b.t.Fatal(err)
	}
	return testnet.Call{
		Plugin: conf.Type, Verb: verb, ContainerID: "c1", IfName: "net1", Netns: "/run/netns/" + b.pod.Name, Config: config,
	}
}

// open opens the node of the bench in this process.
func (b *bench) open() *attachment.Node {
	b.t.Helper()
	var n *attachment.Node
	b.node.Inside(func() {
		var err error
		if n, err = plans.Open(b.state); err != nil {
			b.t.Fatal(err)
		}
	})
	b.t.Cleanup(n.Close)
	return n
}

// records returns the records of the bench's ledger.
func (b *bench) records() []*ledger.Record {
	b.t.Helper()
	l, err := ledger.Open(b.state)
	if err != nil {
		b.t.Fatal(err)
	}
	defer l.Close()
	records, errs := l.List()
	if len(errs) > 0 {
		b.t.Fatal(errs)
	}
	return records
}

// held lists the local store's files of assigned addresses, and its
// reservations of them.
func (b *bench) held() []string {
	b.t.Helper()
	var found []string
	for _, pattern := range []string{"ipam/*/*/*.json", "ipam/*/reserved/*"} {
		files, err := filepath.Glob(filepath.Join(b.state, pattern))
		if err != nil {
			b.t.Fatal(err)
		}
		for _, f := range files {
			if filepath.Base(f) != "pool.json" {
				found = append(found, f)
			}
		}
	}
	return found
}

// untouched fails the test unless the node is as before and nothing is left of
// the attachment: no record, no address held, nothing in the pod.
func (b *bench) untouched(before string) {
	b.t.Helper()
	if d := b.node.Settled(before); d != "" {
		b.t.Errorf("the host is not as it was:\n%s", d)
	}
	if r := b.records(); len(r) > 0 {
		b.t.Errorf("a record is left: %s, phase %s", r[0].Holder(), r[0].Phase)
	}
	if h := b.held(); len(h) > 0 {
		b.t.Errorf("addresses are still held: %v", h)
	}
}

// sameAttributes fails the test unless RTM_GETLINK describes the NIC as before.
// The kernel reports a returning carrier up to a second late (linkwatch).
func (b *bench) sameAttributes(before string) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		d := testnet.Diff(before, b.node.Attributes(nicName))
		if d == "" {
			return
		}
		if time.Now().After(deadline) {
			b.t.Errorf("the NIC's attributes are not as they were:\n%s", d)
			return
		}
	}
}

// localIPAM is the ipam section that uses the local store.
func localIPAM(rangeCIDR string) map[string]any {
	return map[string]any{"type": "whereabouts", "range": rangeCIDR}
}

func fails(t *testing.T, err error, code uint, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("it succeeded")
	}
	if got := codeOf(err); code != 0 && got != code {
		t.Errorf("code %d, want %d: %v", got, code, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
}
