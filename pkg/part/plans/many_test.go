package plans_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// each returns n commands of ip(8) from a format for two bytes.
func each(n int, format string) (commands []string) {
	for i := range n {
		commands = append(commands, fmt.Sprintf(format, i>>8, i&255))
	}
	return commands
}

// delGoal is a goal for a DEL here. Ten times that is less than runtimes wait for a DEL, which
// is minutes. Work on all pairs of thousands would take longer.
const delGoal = 6 * time.Second

// A pod may give its interface, and its netns, thousands of everything: a DEL
// finishes in time, and leaves nothing.
func TestDELIsQuickWhateverThePodMadeThousandsOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		promote bool // the kernel replaces a deleted IPv4 address by another one of its subnet
		does    []string
		tc      []string // commands of tc(8)
	}{
		"addresses of a subnet": {promote: true, does: each(10000, "addr add 10.1.%d.%d/8 dev net1")},
		"addresses":             {does: each(1000, "addr add 10.1.%d.%d/32 dev net1")},
		"IPv6 addresses":        {does: each(500, "addr add fd00::%x:%x/64 dev net1 nodad")},
		"routes":                {does: append([]string{"addr add 10.0.0.1/24 dev net1"}, each(5000, "route add 10.1.%d.%d/32 via 10.0.0.2")...)},
		"rules":                 {does: each(1000, "rule add from 10.1.%d.%d/32 lookup 7")},
		"neighbors":             {does: each(5000, "neigh add 10.1.%d.%d lladdr 02:00:00:00:00:01 nud permanent dev net1")},
		"children":              {does: each(100, "link add link net1 name c%d-%d type macvlan mode bridge")},
		"links":                 {does: each(500, "link add i%d-%d type ifb")},
		"queueing disciplines": {tc: slices.Concat([]string{"qdisc add dev net1 root handle 1: htb"},
			each(2000, "class add dev net1 parent 1: classid 1:1%x%02x htb rate 1mbit"),
			each(2000, "qdisc add dev net1 parent 1:1%x%02x tbf rate 1mbit burst 10k latency 1ms"))},
	} {
		for plugin, config := range map[string]func(*bench, map[string]any) string{
			"host-device": (*bench).config, "macvlan": (*bench).macvlanConfig,
		} {
			t.Run(plugin+", "+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				before := b.node.State()
				config := config(b, map[string]any{"ipam": localIPAM("10.77.0.0/24")})
				b.node.MustRun(b.call("ADD", config))
				if c.promote {
					b.pod.Sysctl("ipv4/conf/all/promote_secondaries", "1")
				}
				b.pod.Batch(nil, c.does...)
				if c.tc != nil {
					file := filepath.Join(t.TempDir(), "tc")
					writeExecutable(t, file, strings.Join(c.tc, "\n"))
					b.pod.Exec("tc", "-batch", file)
				}
				began := time.Now()
				b.node.MustRun(b.call("DEL", config))
				timing.Check(t, "the DEL", time.Since(began), delGoal)
				b.untouched(before)
			})
		}
	}
}

// All macvlans of the pod have the attachment's MAC and could receive its traffic, so all of them
// are deleted.
func TestDelIsQuickWithManyMacvlansOfThePod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	const mac = "02:00:00:00:00:42"
	config := b.macvlanConfig(map[string]any{"mac": mac})
	b.node.MustRun(b.call("ADD", config))
	b.pod.IP("link", "add", "other", "type", "ifb")
	b.pod.Batch(nil, each(800, "link add link net1 name c%d-%d address "+mac+" type macvlan mode bridge")...)
	began := time.Now()
	b.node.MustRun(b.call("DEL", config))
	timing.Check(t, "the DEL", time.Since(began), delGoal)
	b.untouched(before)
	links, err := link.Links(b.pod.Netns)
	if err != nil || len(links) != 2 {
		t.Errorf("%d links are left in the pod, want lo and other (%v)", len(links), err)
	}
}
