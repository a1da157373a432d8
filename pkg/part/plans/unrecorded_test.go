package plans_test

import (
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// A pod chooses the names and aliases of its links: without a record, a DEL
// moves no link that the pod made to the host, under any name. (The rig has the
// NICs that are returned in this way.)
func TestDelWithoutARecordLeavesWhatThePodMade(t *testing.T) {
	t.Parallel()
	for name, made := range map[string][]string{
		"a veth":                 {"link add net1 type veth peer name p0", "link set net1 alias rail1"},
		"a bridge":               {"link add net1 type bridge", "link set net1 alias rail1"},
		"one named by altname":   {"link add x type veth peer name p0", "link property add dev x altname net1", "link set x alias rail1"},
		"with the NIC's altname": {"link add net1 type veth peer name p0", "link property add dev net1 altname " + nicName, "link set net1 alias rail1"},
	} {
		for selector, more := range map[string]map[string]any{
			"device":            nil,
			"device, the alias": {"device": "rail1"},
			"deviceID":          {"device": nil, "deviceID": "0000:3b:00.0"},
			"hwaddr":            {"device": nil, "hwaddr": "02:00:00:00:00:01"},
		} {
			t.Run(name+", by "+selector, func(t *testing.T) {
				b := newBench(t)
				before := b.node.State()
				b.pod.Batch(nil, append(made, "link set net1 address 02:00:00:00:00:01")...)
				pod := b.pod.State()
				b.node.MustRun(b.call("DEL", b.config(more)))
				b.untouched(before)
				if d := testnet.Diff(pod, b.pod.State()); d != "" {
					t.Errorf("the pod is not as it was:\n%s", d)
				}
			})
		}
	}
}
