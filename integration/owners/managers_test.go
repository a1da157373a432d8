package owners

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

const nicName = "ens12np0"

// rail is a host, a pod, and the far end of a NIC's cable.
type rail struct {
	*Host
	t         *testing.T
	pod, wire *testnet.Netns
	state     string
}

func newRail(t *testing.T) *rail {
	t.Helper()
	return &rail{
		Host: NewHost(t, testnet.NewNetns(t, "host")), t: t, pod: testnet.NewNetns(t, "pod"), wire: testnet.NewNetns(t, "wire"),
		state: filepath.Join(t.TempDir(), "state"),
	}
}

// call returns the call of host-device for a NIC.
func (r *rail) call(verb, nic string, more map[string]any) testnet.Call {
	r.t.Helper()
	config := map[string]any{"cniVersion": "1.1.0", "name": "rail", "type": "host-device", "device": nic, "stateDir": r.state}
	for k, v := range more {
		config[k] = v
	}
	text, err := json.Marshal(config)
	if err != nil {
		r.t.Fatal(err)
	}
	return testnet.Call{
		Plugin: "host-device", Verb: verb, ContainerID: "c1", IfName: "net1", Netns: "/run/netns/" + r.pod.Name, Config: string(text),
	}
}

// loans is the number of loans of each kind: 50 in the long form.
func loans() int { return need.Either(3, 50) }

// TestNICOfANetworkManagerComesHome lends a NIC again and again that a network manager owns,
// which runs, does not run, ends during the loan or begins then. The NIC's addresses and routes and the
// host's rules are as before, with the daemon and without it.
func TestNICOfANetworkManagerComesHome(t *testing.T) {
	t.Parallel()
	for name, manager := range Managers {
		for kind, loan := range Loans {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				r := newRail(t)
				r.NIC(nicName, r.wire)
				manager(r.Host, nicName).Lend(loans(), func() {}, loan,
					func() { r.MustRun(r.call("ADD", nicName, nil)) }, func() { r.MustRun(r.call("DEL", nicName, nil)) })
			})
		}
	}
}

// TestNetworkdRemovesForeignRules shows what the guide advises against: at a return networkd
// removes the host's rules that others made, unless it is told not to.
func TestNetworkdRemovesForeignRules(t *testing.T) {
	t.Parallel()
	for manage, stays := range map[string]bool{"": false, "[Network]\nManageForeignRoutingPolicyRules=no\n": true} {
		t.Run(fmt.Sprint(stays), func(t *testing.T) {
			t.Parallel()
			r := newRail(t)
			r.NIC(nicName, r.wire)
			r.Write("run/systemd/networkd.conf.d/rules.conf", manage)
			m := NewNetworkd(r.Host, nicName)
			m.Begin()
			r.IP("rule", "add", "fwmark", "0x200/0xf00", "lookup", "2004", "priority", "9") // as Cilium's
			r.MustRun(r.call("ADD", nicName, nil))
			m.Forget()
			r.MustRun(r.call("DEL", nicName, nil))
			m.Configured()
			there := func() bool { return strings.Contains(r.IP("rule"), "lookup 2004") }
			if !stays {
				m.await("the end of the rule", func() bool { return !there() })
			} else if !there() {
				t.Error("the rule is gone")
			}
		})
	}
}
