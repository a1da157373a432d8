package plans_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func padding(n int) string { return strings.Repeat("x", n) }

// Each interface keeps its configuration on tmpfs, and every ADD of the node
// reads them all: an author's padding is refused before anything changes.
func TestALargeConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		more map[string]any
		want string
	}{
		"1 MB that no plugin reads": {map[string]any{"note": padding(1 << 20)}, "more than 65536"},
		"1 MB in ipam":              {map[string]any{"ipam": map[string]any{"type": "spy", "note": padding(1 << 20)}}, "more than 65536"},
		"17 kB in ipam":             {map[string]any{"ipam": map[string]any{"type": "spy", "note": padding(17 << 10)}}, "at most 16384 are kept"},
		"a name of 17 kB":           {map[string]any{"ipam": nil, "name": padding(17 << 10)}, "at most 16384 are kept"},
	} {
		for _, plugin := range []string{"host-device", "macvlan", "rdma"} {
			t.Run(plugin+", "+name, func(t *testing.T) {
				b := newBench(t)
				before := b.node.State()
				dir, mark := spied(t)
				more := map[string]any{"type": plugin, "master": nicName, "ipam": map[string]any{"type": "spy"}}
				if plugin == "rdma" {
					more["prevResult"] = b.prev("1.1.0")
				}
				maps.Copy(more, c.more)
				call := b.call("ADD", b.config(more))
				call.Path = testnet.Bin(t) + ":" + dir
				_, err := b.node.Run(call)
				fails(t, err, cnierr.InvalidConfig, c.want)
				if _, err := os.Stat(mark); err == nil {
					t.Error("IPAM was asked for an address")
				}
				if _, err := os.Stat(b.state); err == nil {
					t.Error("the state directory was made")
				}
				call.Path = "" // without the IPAM plugin
				b.node.MustRun(call.With("DEL"))
				b.untouched(before)
			})
		}
	}
}

func TestPaddingIsNotKept(t *testing.T) {
	t.Parallel()
	for plugin, config := range map[string]func(b *bench, more map[string]any) string{"host-device": (*bench).config, "macvlan": (*bench).macvlanConfig} {
		t.Run(plugin, func(t *testing.T) {
			b := newBench(t)
			before := b.node.State()
			call := b.call("ADD", config(b, map[string]any{"note": padding(60000), "ipam": localIPAM("10.7.0.0/24")}))
			b.node.MustRun(call)
			if data := readFile(t, b.recordPath()); len(data) > 8<<10 {
				t.Errorf("the record has %d bytes", len(data))
			}
			if len(b.held()) == 0 {
				t.Fatal("no address is held, so this test proves nothing")
			}
			b.pod.Delete() // only the record is left to end it
			if plugin == "host-device" {
				b.node.Run(b.call("GC", config(b, nil))) //nolint:errcheck // a veth dies with its pod
			} else {
				b.node.MustRun(b.call("GC", config(b, nil)))
				b.untouched(before)
			}
			if h := b.held(); len(h) > 0 {
				t.Errorf("addresses are still held: %v", h)
			}
		})
	}
}

// Records of earlier versions contain whole configurations, up to 8 MiB, and
// their attachments still end.
func TestARecordWithALargeConfigurationEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	config := b.config(map[string]any{"ipam": localIPAM("10.7.0.0/24")})
	b.node.MustRun(b.call("ADD", config))
	forge(t, b, func(r *ledger.Record) {
		r.IPAM.Config = []byte(b.config(map[string]any{"note": padding(7 << 20), "ipam": localIPAM("10.7.0.0/24")}))
	})
	b.node.MustRun(b.call("DEL", b.config(map[string]any{"note": padding(7 << 20), "ipam": localIPAM("10.7.0.0/24")})))
	b.untouched(before)
}
