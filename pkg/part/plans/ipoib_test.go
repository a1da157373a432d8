package plans_test

import (
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// TestIPoIBWithoutAnInfiniBandInterfaceIsRefused has what needs no HCA; the rig has the rest.
func TestIPoIBWithoutAnInfiniBandInterfaceIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		more map[string]any
		code uint
		text string
	}{
		"on Ethernet":                 {map[string]any{"master": nicName}, cnierr.InvalidConfig, "is not an InfiniBand interface"},
		"on none":                     {map[string]any{"master": "ens99"}, cnierr.NICNotFound, `"ens99"`},
		"without master and route":    {nil, cnierr.InvalidConfig, "no default route"},
		"on a rail that is not known": {map[string]any{"rail": 3}, cnierr.InvalidConfig, "rail"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			before, pod := b.node.State(), b.pod.State()
			more := map[string]any{"type": "ipoib", "device": nil, "ipam": localIPAM("172.31.1.0/24")}
			for k, v := range c.more {
				more[k] = v
			}
			for _, verb := range []string{"ADD", "STATUS"} {
				_, err := b.node.Run(b.call(verb, b.config(more)))
				if verb == "ADD" {
					fails(t, err, c.code, c.text)
				} else if err == nil {
					t.Error("STATUS says that ADD can work")
				}
			}
			b.node.MustRun(b.call("DEL", b.config(more)))
			b.untouched(before)
			if d := b.pod.Settled(pod); d != "" {
				t.Errorf("the pod is not as it was:\n%s", d)
			}
		})
	}
}
