package multus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// delFromTheCache changes or deletes the network of a pod that runs. Multus' DEL then gives the
// plugin the configuration of the ADD, from its cache.
func delFromTheCache(t *testing.T, l *lab) {
	const before, after = "10.63.0.0/24", "10.64.0.0/24"
	n := l.nodes[0]
	hostDevice := func(rail int, subnet string) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "cached", "type": "host-device", "device": %q,
			"ipam": {"type": "whereabouts", "range": %q}}`, rails(t)[rail], subnet)
	}
	macvlan := func(subnet string) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "cached", "type": "macvlan", "master": %q,
			"ipam": {"type": "whereabouts", "range": %q}}`, sharedNIC, subnet)
	}
	for _, c := range []struct {
		name   string
		config string
		then   string // the network's configuration at DEL, "" if it is deleted
		forced bool   // the pod's object is deleted as well
		lost   bool   // and rail-cni's record, so that only the configuration names the address
	}{
		{"changed", hostDevice(2, before), hostDevice(3, after), false, false},
		{"another-plugin", hostDevice(2, before), macvlan(after), false, false},
		{"deleted", hostDevice(2, before), "", false, false},
		{"all-deleted", hostDevice(2, before), "", true, false},
		{"no-record", macvlan(before), macvlan(after), false, true},
		{"no-record-deleted", macvlan(before), "", false, true},
	} {
		name := "cached-" + c.name
		nad(t, name, "", c.config)
		simplePod(t, name, name)
		s := n.sandbox(t, name)
		s.mustAdd()
		wantHeld(t, before+" default/"+name+" net1")
		if c.then == "" {
			deleteObject(t, networks+"/"+name)
		} else {
			code, answer, err := plane.Admin().Patch(t.Context(), networks+"/"+name, controlplane.MergePatch, map[string]any{"spec": map[string]any{"config": c.then}})
			if err != nil || code != http.StatusOK {
				t.Fatalf("changing %s: %d, %v: %s", name, code, err, answer)
			}
		}
		if c.forced {
			deleteObject(t, pods+"/"+name)
		}
		if c.lost {
			n.lose(t)
		}
		cache := n.file("/var/lib/cni/multus/" + s.id)
		if configs := cached(t, cache); !strings.Contains(configs, before) || strings.Contains(configs, after) {
			t.Errorf("%s: Multus' cache:\n%s", name, configs)
		}
		s.mustDel()
		wantHeld(t)
		if _, err := os.Stat(cache); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: Multus' cache is left: %v", name, err)
		}
		if d := n.Settled(l.before[0]); d != "" {
			t.Errorf("%s: the node is not as it was:\n%s", name, d)
		}
		s.mustDel() // the runtime may repeat it, when nobody knows the network any more
	}
}

// cached returns the configurations in a file of Multus' cache.
func cached(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var delegates []struct{ Bytes []byte }
	if err := json.Unmarshal(text, &delegates); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var configs strings.Builder
	for _, d := range delegates {
		fmt.Fprintf(&configs, "%s\n", d.Bytes)
	}
	return configs.String()
}

// lose removes the node's records.
func (n *node) lose(t *testing.T) {
	t.Helper()
	records := n.records()
	l, err := ledger.Open(n.file("/run/rail-cni"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if len(records) == 0 {
		t.Fatal("there is no record")
	}
	for _, r := range records {
		if err := l.Remove(r); err != nil {
			t.Fatal(err)
		}
	}
}

// gatewaysOfRails: Multus does not look at a route's table, and takes the default route in that of
// a rail for one of the pod's.
func gatewaysOfRails(t *testing.T, l *lab) {
	n := l.nodes[0]
	var names []string
	for rail, routes := range []string{`"routes": [{"dst": "0.0.0.0/0", "gw": "10.67.0.254"}],`, `"routes": [{"dst": "0.0.0.0/0"}],`, ""} {
		name := fmt.Sprint("routed-", rail)
		names = append(names, name)
		nad(t, name, "", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "host-device", "device": %q, "routing": {"mode": "source", "table": 100%d},
			"ipam": {"type": "whereabouts", "range": "10.67.%d.0/24", %s "gateway": "10.67.%d.254"}}`, name, rails(t)[rail], rail, rail, routes, rail))
	}
	simplePod(t, "routed", strings.Join(names, ","))
	s := n.sandbox(t, "routed")
	s.mustAdd()
	var gateways [][]string
	for _, st := range statusOf(t, "routed") {
		gateways = append(gateways, st.Gateway)
	}
	// eth0, and the rails. nad-client 1.7.6 prints a next hop that the route does not name as "<nil>".
	if want := [][]string{nil, {"10.67.0.254"}, {"<nil>"}, nil}; !reflect.DeepEqual(gateways, want) {
		t.Errorf("gateways in network-status: %q, not %q", gateways, want)
	}
	if out := s.netns.IP("route", "show", "default"); strings.Contains(out, "net") {
		t.Errorf("the pod's default route leaves by a rail:\n%s", out)
	}
	for rail := range names { // each has it in its table
		if out := s.netns.IP("route", "show", "default", "table", fmt.Sprint(1000+rail)); !strings.Contains(out, fmt.Sprintf("via 10.67.%d.254", rail)) {
			t.Errorf("table %d: %s", 1000+rail, out)
		}
	}
	s.mustDel()
}
