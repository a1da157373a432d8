package plans_test

import (
	"fmt"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// A BPF program survives the NIC's move between namespaces: XDP and tcx belong
// to the link, not to the namespace.
func TestProgramThatThePodAttachedDoesNotComeHome(t *testing.T) {
	t.Parallel()
	for _, hook := range testnet.Hooks {
		for name, come := range map[string]func(*bench){
			"taken out of the pod":   func(*bench) {},
			"returned by the kernel": func(b *bench) { b.pod.IP("link", "set", "net1", "netns", b.node.Name) },
		} {
			t.Run(hook+", "+name, func(t *testing.T) {
				b := newBench(t)
				b.wire.IP("link", "set", nicName+"-sw", "mtu", "1500") // otherwise a veth refuses an XDP program
				before, attributes := b.node.State(), b.node.Attributes(nicName)
				config := b.config(nil)
				b.node.MustRun(b.call("ADD", config))
				b.pod.Attach("net1", hook)
				come(b)
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
				b.sameAttributes(attributes)
				if left := b.node.TCX(nicName); left != 0 {
					t.Errorf("%d tcx programs of the pod are on the NIC", left)
				}
			})
		}
	}
}

func TestNICWithAProgramOfTheHostIsNotLent(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"xdp native", "tcx egress"} {
		b := newBench(t)
		b.wire.IP("link", "set", nicName+"-sw", "mtu", "1500")
		b.node.Attach(nicName, hook)
		before := b.node.State()
		_, err := b.node.Run(b.call("ADD", b.config(nil)))
		fails(t, err, cnierr.NICProtected, `"allow": ["bpf"]`)
		b.untouched(before)
	}
}

// The pod does not get the host's program, and the program is not restored.
func TestNICIsLentWithoutTheHostsProgram(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"xdp native by a bpf_link", "tcx egress"} {
		b := newBench(t)
		b.wire.IP("link", "set", nicName+"-sw", "mtu", "1500")
		config := b.config(map[string]any{"allow": []string{"bpf"}})
		before, attributes := b.node.State(), b.node.Attributes(nicName)
		b.node.Attach(nicName, hook)
		b.node.MustRun(b.call("ADD", config))
		if left := b.pod.TCX("net1"); left != 0 {
			t.Errorf("the pod has %d tcx programs of the host", left)
		}
		if r := b.records(); fmt.Sprint(r[0].Loan.Snapshot.Programs) == "[]" {
			t.Error("the record does not tell of the host's program")
		}
		b.node.MustRun(b.call("DEL", config))
		b.untouched(before)
		b.sameAttributes(attributes)
	}
}
