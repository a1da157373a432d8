//go:build rig

package tests

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// upstream returns the same call of upstream's host-device.
func upstream(t *testing.T, c testnet.Call) testnet.Call {
	t.Helper()
	c.Path = testnet.Peers(t)
	c.Plugin = filepath.Join(c.Path, c.Plugin)
	return c
}

// At the switch-over there are pods whose NICs upstream's plugin lent. It kept
// only the NIC's name, as the alias.
func TestNICThatUpstreamLentComesHome(t *testing.T) {
	for name, dies := range map[string]bool{"from a living pod": false, "from a dead pod": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.up(1)
			before := n.State()
			p, config := n.pod("pod1"), n.config(0, map[string]any{"cniVersion": "1.0.0"})
			n.MustRun(upstream(t, p.call("ADD", "net1", config)))
			if dies {
				p.Kill()
			}
			n.MustRun(p.call("DEL", "net1", config))
			l, err := link.ByName(n.Netns.Netns, nicName(0))
			if err != nil || l.Alias != "" || l.ParentDev != nicPCI(0) || l.Name != nicName(0) {
				t.Fatalf("%s: %+v, %v\n%s", nicName(0), l, err, n.IP("-d", "link"))
			}
			// Its earlier state is not known.
			n.Batch(nil, "link set "+nicName(0)+" up")
			n.untouched(before)
		})
	}
}

func TestUpstreamEndsWhatOursBegan(t *testing.T) {
	n := newNode(t)
	n.up(1)
	before := n.State()
	p, config := n.pod("pod1"), n.config(0, map[string]any{"cniVersion": "1.0.0"})
	n.MustRun(p.call("ADD", "net1", config))
	n.MustRun(upstream(t, p.call("DEL", "net1", config)))
	if l, err := link.ByName(n.Netns.Netns, nicName(0)); err != nil || l.ParentDev != nicPCI(0) {
		t.Fatalf("%s: %+v, %v", nicName(0), l, err)
	}
	// The remaining record ends with the pod, and contains the NIC's state.
	p.Kill()
	for deadline := time.Now().Add(5 * time.Second); len(n.records()) > 0 && time.Now().Before(deadline); {
		n.gc()
	}
	n.untouched(before)
}

// If a record is lost or was edited the NIC itself is the source: its device,
// which the configuration selects, and its name in the alias.
func TestNICWithoutARecordComesHome(t *testing.T) {
	losses := map[string]func(t *testing.T, n *node, record string){
		"missing": func(t *testing.T, _ *node, record string) { remove(t, record) },
		"corrupt": func(t *testing.T, _ *node, record string) { write(t, record, "{") },
		"edited": func(t *testing.T, n *node, record string) {
			r := n.records()[0]
			r.Netns = r.HostNetns
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			write(t, record, string(text))
		},
		"the state directory removed": func(t *testing.T, n *node, _ string) { remove(t, n.state) },
	}
	ways := map[string]map[string]any{
		"device": nil, "PCI": {"device": nil, "deviceID": nicPCI(0)}, "altname": {"device": altName(0)},
	}
	var both [][2]string
	for _, loss := range slices.Sorted(maps.Keys(losses)) {
		for _, by := range slices.Sorted(maps.Keys(ways)) {
			both = append(both, [2]string{loss, by})
		}
	}
	for _, c := range need.Sample(t, 4, both) {
		loss, by := c[0], c[1]
		t.Run(loss+", by "+by, func(t *testing.T) {
			n := newNode(t)
			n.up(1)
			before, p, config := n.State(), n.pod("pod1"), n.config(0, ways[by])
			n.MustRun(p.call("ADD", "net1", config))
			losses[loss](t, n, filepath.Join(n.state, "attachments", "pod1@net1.json"))
			n.MustRun(p.call("DEL", "net1", config))
			l, err := link.ByName(n.Netns.Netns, nicName(0))
			if err != nil || l.IsUp() || l.Alias != "" || l.ParentDev != nicPCI(0) {
				t.Fatalf("%s: %+v, %v\n%s", nicName(0), l, err, n.IP("-d", "link"))
			}
			n.Batch(nil, "link set "+nicName(0)+" up") // its earlier state is not known
			n.untouched(before)
		})
	}
}

// A NIC stays in the pod if the configuration does not select it, the node file
// does not open it, or another attachment has it or has lent it under that
// name.
func TestNICWithoutARecordStaysWhereItIsNotMeant(t *testing.T) {
	for name, c := range map[string]struct {
		alias string
		more  map[string]any
		file  string
		lent  bool // the NIC that the alias names is lent to another pod
	}{
		"another device":                  {nicName(0), map[string]any{"device": nicName(1)}, "", false},
		"another PCI function":            {nicName(0), map[string]any{"device": nil, "deviceID": nicPCI(1)}, "", false},
		"the pod changed the alias":       {"eth7", nil, "", false},
		"the node file does not open it":  {nicName(0), nil, "nics: [{name: rail*}]\npaths: [/**]", false},
		"it has the name of one lent NIC": {nicName(2), map[string]any{"device": nil, "deviceID": nicPCI(0)}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.up(3)
			p, other, config := n.pod("pod1"), n.pod("pod2"), n.config(0, c.more)
			n.MustRun(upstream(t, p.call("ADD", "net1", n.config(0, map[string]any{"cniVersion": "1.0.0"}))))
			p.IP("link", "set", "net1", "alias", c.alias)
			if c.lent {
				n.MustRun(other.call("ADD", "net1", n.config(2, nil)))
			}
			if c.file != "" {
				file := filepath.Join(t.TempDir(), "node.yaml")
				write(t, file, c.file)
				t.Setenv(nodefile.PathEnv, file)
			}
			before, pod := n.State(), p.State()
			n.MustRun(p.call("DEL", "net1", config))
			if d := n.Settled(before); d != "" {
				t.Errorf("the host was changed:\n%s", d)
			}
			if d := p.Settled(pod); d != "" {
				t.Errorf("the pod was changed:\n%s", d)
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
