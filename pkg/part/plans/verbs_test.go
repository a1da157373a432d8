package plans_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestCheckNoticesWhatChanged(t *testing.T) {
	t.Parallel()
	ipam := map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "10.1.1.2/24", "gateway": "10.1.1.1"}},
		"routes": []map[string]any{{"dst": "10.0.0.0/8"}, {"dst": "0.0.0.0/0", "gw": "10.1.1.1", "priority": 900}},
	}
	for name, c := range map[string]struct {
		change []string // arguments of ip in the pod
		text   string   // "" = CHECK must pass
	}{
		"nothing":         {nil, ""},
		"down":            {[]string{"link", "set", "net1", "down"}, "is down"},
		"MTU, by tuning":  {[]string{"link", "set", "net1", "mtu", "1400"}, ""},
		"MAC":             {[]string{"link", "set", "net1", "address", "02:00:00:00:00:99"}, "has MAC 02:00:00:00:00:99"},
		"address removed": {[]string{"addr", "del", "10.1.1.2/24", "dev", "net1"}, "lacks address 10.1.1.2/24"},
		"route removed":   {[]string{"route", "del", "10.0.0.0/8"}, "the route to 10.0.0.0/8"},
		"address added":   {[]string{"addr", "add", "10.1.1.77/24", "dev", "net1"}, ""},
		"route added":     {[]string{"route", "add", "10.200.0.0/16", "via", "10.1.1.1"}, ""},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(plugin+"/"+name, func(t *testing.T) {
				b := newBench(t)
				config := b.config(map[string]any{"ipam": ipam})
				if plugin == "macvlan" {
					config = b.macvlanConfig(map[string]any{"ipam": ipam})
				}
				out := b.node.MustRun(b.call("ADD", config))
				if c.change != nil {
					b.pod.IP(c.change...)
				}
				_, err := b.node.Run(b.call("CHECK", b.withPrevResult(config, out)))
				if c.text == "" {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				fails(t, err, cnierr.Mismatch, c.text)
			})
		}
	}
}

// The chained plugin tuning changes the NIC in the pod, and undoes the change in its own DEL, for
// which it needs the interface. In this test the DEL of tuning never runs.
func TestWhatTuningSetOnTheNICDoesNotComeHome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	before, attributes := b.node.State(), b.node.Attributes(nicName)
	config := b.config(nil)
	out := b.node.MustRun(b.call("ADD", config))
	b.node.MustRun(peer(t, b.call("ADD", b.withPrevResult(b.configOf(map[string]any{
		"cniVersion": "1.1.0", "name": "roce-net1", "type": "tuning", "dataDir": t.TempDir(), "mac": "02:00:5e:00:00:77",
		"mtu": 4000, "promisc": true, "allmulti": true, "txQLen": 77, "sysctl": map[string]string{"net.ipv4.conf.IFNAME.arp_filter": "1"},
	}, nil), out))))
	for _, want := range []string{"mtu 4000", "PROMISC", "ALLMULTI", "qlen 77", "02:00:5e:00:00:77"} {
		if text := b.pod.IP("link", "show", "net1"); !strings.Contains(text, want) {
			t.Errorf("tuning has not set %q: %s", want, text)
		}
	}
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
	b.sameAttributes(attributes)
	if said := b.returned(); said != "" {
		t.Errorf("of the NIC is said: %s", said)
	}
}

// The chained plugin sbr moves the routes of an interface to a table of its
// own, with a rule for the interface's address.
func TestCheckFindsRoutesThatSBRMovedToAnotherTable(t *testing.T) {
	t.Parallel()
	ipam := map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "10.1.1.2/24", "gateway": "10.1.1.1"}},
		"routes": []map[string]any{{"dst": "10.0.0.0/8"}, {"dst": "0.0.0.0/0", "gw": "10.1.1.1"}},
	}
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			b := newBench(t)
			config := b.config(map[string]any{"ipam": ipam})
			if plugin == "macvlan" {
				config = b.macvlanConfig(map[string]any{"ipam": ipam})
			}
			prev := b.withPrevResult(config, b.node.MustRun(b.call("ADD", config)))
			b.node.MustRun(peer(t, b.call("ADD", strings.Replace(prev, `"type":"`+plugin, `"type":"sbr`, 1))))
			if main := b.pod.IP("route", "show", "10.0.0.0/8"); main != "" {
				t.Fatalf("sbr left %s in the main table", main)
			}
			b.node.MustRun(b.call("CHECK", prev))
			b.pod.IP("route", "del", "10.0.0.0/8", "table", "100")
			_, err := b.node.Run(b.call("CHECK", prev))
			fails(t, err, cnierr.Mismatch, "the route to 10.0.0.0/8")
		})
	}
}

// Upstream's plugin made it, without a record.
func TestCheckKnowsAMacvlanByItsKindAndMode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.macvlanConfig(map[string]any{"cniVersion": "1.0.0", "mode": "private"})
	for _, ours := range []bool{true, false} {
		c := b.call("ADD", config)
		if !ours {
			c = peer(t, c)
		}
		prev := b.withPrevResult(config, b.node.MustRun(c))
		b.node.MustRun(b.call("CHECK", prev))
		_, err := b.node.Run(b.call("CHECK", strings.Replace(prev, `"private"`, `"bridge"`, 1)))
		fails(t, err, cnierr.Mismatch, "mode private, not bridge")
		// Another interface has its name now, with the same MAC.
		l, err := link.ByName(b.pod.Netns, "net1")
		if err != nil {
			t.Fatal(err)
		}
		b.pod.IP("link", "set", "net1", "name", "net9")
		b.pod.IP("link", "add", "net1", "address", l.MAC.String(), "type", "ifb")
		b.pod.IP("link", "set", "net1", "up")
		_, err = b.node.Run(b.call("CHECK", prev))
		fails(t, err, cnierr.Mismatch, "has kind ifb, want macvlan")
		b.pod.IP("link", "del", "net1")
		b.pod.IP("link", "set", "net9", "name", "net1")
		b.node.MustRun(b.call("DEL", config))
	}
}

func TestCheckKnowsANetnsByWhatItIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.config(nil)
	out := b.node.MustRun(b.call("ADD", config))
	// The same namespace under its other path, and under another network name.
	c := b.call("CHECK", b.withPrevResult(config, out))
	c.Netns = strings.Replace(c.Netns, "/run/netns/", "/var/run/netns/", 1)
	c.Config = strings.Replace(c.Config, "roce-net1", "roce-net2", 1)
	b.node.MustRun(c)
	// Another namespace with the same container ID.
	c.Netns = "/run/netns/" + testnet.NewNetns(t, "other").Name
	_, err := b.node.Run(c)
	fails(t, err, cnierr.Mismatch, "is another netns now")
}

func TestCheckNeedsAPrevResultAndAVersionThatHasIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.node.Run(b.call("CHECK", b.config(nil)))
	fails(t, err, cnierr.InvalidConfig, "prevResult missing")
	_, err = b.node.Run(b.call("CHECK", b.config(map[string]any{"cniVersion": "0.3.1"})))
	fails(t, err, 1, "config version does not allow CHECK")
}

func TestGCEndsWhatTheRuntimeDoesNotName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		list []map[string]any // nil = no list at all
		key  string
		kept bool
	}{
		"no list":               {nil, "cni.dev/valid-attachments", true},
		"empty list":            {[]map[string]any{}, "cni.dev/valid-attachments", false},
		"named":                 {[]map[string]any{{"containerID": "c1", "ifname": "net1"}}, "cni.dev/valid-attachments", true},
		"another interface":     {[]map[string]any{{"containerID": "c1", "ifname": "net2"}}, "cni.dev/valid-attachments", false},
		"named in the old key":  {[]map[string]any{{"containerID": "c1", "ifname": "net1"}}, "cni.dev/attachments", true},
		"empty list in the old": {[]map[string]any{}, "cni.dev/attachments", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			before := b.node.State()
			ipam := localIPAM("172.31.1.0/24")
			b.node.MustRun(b.call("ADD", b.config(map[string]any{"ipam": ipam})))
			more := map[string]any{"ipam": ipam}
			if c.list != nil {
				more[c.key] = c.list
			}
			gc := b.call("GC", b.config(more))
			gc.ContainerID, gc.IfName, gc.Netns = "", "", ""
			b.node.MustRun(gc)
			if c.kept {
				if len(b.records()) != 1 || len(b.held()) == 0 {
					t.Error("GC ended a valid attachment")
				}
				return
			}
			b.untouched(before)
		})
	}
}

func TestGCOfOneNetworkLeavesTheOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(nil)))
	gc := b.call("GC", b.config(map[string]any{"name": "another", "cni.dev/valid-attachments": []any{}}))
	b.node.MustRun(gc)
	if len(b.records()) != 1 {
		t.Error("GC ended an attachment of another network")
	}
}

// Nodes of one machine may share a state directory, and a runtime names its own attachments only.
func TestGCOfOneNodeLeavesTheOthersAttachments(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(nil)))
	gc := b.call("GC", b.config(map[string]any{"cni.dev/valid-attachments": []any{}}))
	testnet.NewNetns(t, "node2").MustRun(gc)
	if _, err := link.ByName(b.pod.Netns, "net1"); err != nil || len(b.records()) != 1 {
		t.Errorf("GC ended an attachment of another node: %v", err)
	}
	b.node.MustRun(gc)
	if len(b.records()) != 0 {
		t.Error("GC of the node itself left the attachment")
	}
}

func TestGCSweepsEvenWithoutAList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})))
	b.pod.Delete()
	gc := b.call("GC", b.macvlanConfig(map[string]any{"name": "another"}))
	b.node.MustRun(gc)
	b.nothingHeld()
}

func TestStatusSaysWhetherAddCanWork(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	status := func(config string) error { _, err := b.node.Run(b.call("STATUS", config)); return err }
	for _, config := range []string{
		b.config(nil), b.config(map[string]any{"device": nil}), b.macvlanConfig(nil),
		b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")}),
	} {
		if err := status(config); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
	fails(t, status(b.config(map[string]any{"device": "ens99"})), cnierr.NotAvailable, "ens99")
	fails(t, status(b.macvlanConfig(map[string]any{"master": "ens99"})), cnierr.NotAvailable, "ens99")
	fails(t, status(b.config(map[string]any{"ipam": map[string]any{"type": "nowhere"}})), cnierr.IPAM, "nowhere")
	b.node.MustRun(b.call("ADD", b.config(nil)))
	if err := status(b.config(nil)); err != nil {
		t.Errorf("a NIC that is lent is no fault of the node: %v", err)
	}
}

// The RDMA device of a parent in the pod is the pod's own, so ADD needs none.
func TestStatusOfMacvlanOnALinkOfThePodDoesNotDependOnRDMA(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.pod.NIC("eth1", b.wire)
	config := b.macvlanConfig(map[string]any{"master": "eth1", "linkInContainer": true, "rdma": "required"})
	for _, verb := range []string{"STATUS", "ADD", "DEL"} {
		b.node.MustRun(b.call(verb, config))
	}
}

func TestMissingNICIsNamedBesideARecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(nil)))
	b.overwriteRecord(t, "{")
	other := b.call("ADD", b.config(map[string]any{"device": "ens99"}))
	other.ContainerID, other.IfName = "c2", "net2"
	_, err := b.node.Run(other)
	fails(t, err, cnierr.NICNotFound, "ens99", "c1@net1.json")
}

func TestSecondAddOfALentNICNamesItsHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.call("ADD", b.config(nil))
	c.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=ai;K8S_POD_NAME=trainer-0;K8S_POD_UID=4711"
	b.node.MustRun(c)
	second := c
	second.ContainerID, second.Netns = "c2", "/run/netns/"+testnet.NewNetns(t, "pod2").Name
	_, err := b.node.Run(second)
	fails(t, err, cnierr.NICLent, nicName, "pod ai/trainer-0", "container c1", "interface net1")
	_, err = b.node.Run(c)
	fails(t, err, cnierr.NameTaken, "attached already")
	// Its holder's netns is gone (and the veth with it; a physical NIC would
	// return): the holder's record no longer blocks it.
	b.pod.Delete()
	b.node.NIC(nicName, testnet.NewNetns(t, "wire2"))
	b.node.MustRun(second)
	b.node.MustRun(second.With("DEL"))
	b.nothingHeld()
}

func TestRuntimeMayReuseAContainerID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	c := b.call("ADD", b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")}))
	b.node.MustRun(c)
	// Same ID and interface, another netns: the old attachment is stale.
	c.Netns = "/run/netns/" + testnet.NewNetns(t, "pod2").Name
	b.node.MustRun(c)
	if _, err := link.ByName(b.pod.Netns, "net1"); err == nil {
		t.Error("the NIC is still in the old pod netns")
	}
	b.node.MustRun(c.With("DEL"))
	b.untouched(before)
}

func TestOf64AddsForEightNICsEightWin(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const nics, adds = 8, 64
	for i := range nics {
		b.node.NIC(fmt.Sprintf("rail%d", i), b.wire)
	}
	before := b.node.State()
	pods := make([]*testnet.Netns, adds)
	for i := range pods {
		pods[i] = testnet.NewNetns(t, "p")
	}
	call := func(i int) testnet.Call {
		c := b.call("ADD", b.config(map[string]any{"device": fmt.Sprintf("rail%d", i%nics)}))
		c.ContainerID, c.Netns = fmt.Sprintf("c%d", i), "/run/netns/"+pods[i].Name
		return c
	}
	errs := make([]error, adds)
	var all sync.WaitGroup
	for i := range adds {
		all.Go(func() { _, errs[i] = b.node.Run(call(i)) })
	}
	all.Wait()
	won := 0
	for i, err := range errs {
		if err == nil {
			won++
			continue
		}
		fails(t, err, cnierr.NICLent, fmt.Sprintf("rail%d is lent to container c", i%nics))
	}
	if won != nics || len(b.records()) != nics {
		t.Errorf("%d ADDs succeeded, there are %d records, want %d of both", won, len(b.records()), nics)
	}
	for i := range adds {
		all.Go(func() {
			if _, err := b.node.Run(call(i).With("DEL")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	b.untouched(before)
}

func TestFilesOfTheLedgerAreRootsAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")})))
	err := filepath.WalkDir(b.state, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || d.Type()&os.ModeSymlink != 0 {
			return err
		}
		want := os.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %04o, want %04o", path, info.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The host does not see a macvlan in a pod, but lending its master would
// destroy it.
func TestMasterOfAPodsMacvlanIsNotLent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.macvlanConfig(nil)))
	before := b.node.State()
	c := b.call("ADD", b.config(nil))
	c.ContainerID, c.Netns = "c2", "/run/netns/"+testnet.NewNetns(t, "pod2").Name
	_, err := b.node.Run(c)
	fails(t, err, cnierr.NICProtected, "a macvlan on it belongs to container c1", `"allow": ["children"]`)
	if d := b.node.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	c.Config = b.config(map[string]any{"allow": []string{"children"}})
	b.node.MustRun(c)
	b.node.MustRun(c.With("DEL"))
	// Of one that was deleted, only addresses may be left in the record.
	b.pod.IP("link", "del", "net1")
	b.changeRecord(0, func(r *ledger.Record) { r.Phase = ledger.Freeing })
	c.Config = b.config(nil)
	b.node.MustRun(c)
	b.node.MustRun(c.With("DEL"))
}

// TestNICThatAPodDrivesFromUserSpaceIsNotLent: it stays on the host, but
// another pod has it.
func TestNICThatAPodDrivesFromUserSpaceIsNotLent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	userspace := b.call("ADD", b.config(map[string]any{"DPDKMode": true}))
	b.node.MustRun(userspace)
	c := b.call("ADD", b.config(nil))
	c.ContainerID, c.Netns = "c2", "/run/netns/"+testnet.NewNetns(t, "pod2").Name
	_, err := b.node.Run(c)
	fails(t, err, cnierr.NICLent, "is lent to container c1")
	// It still carries macvlans.
	child := c
	child.Plugin, child.Config = "macvlan", b.macvlanConfig(nil)
	b.node.MustRun(child)
	b.node.MustRun(child.With("DEL"))
	b.node.MustRun(userspace.With("DEL"))
	b.node.MustRun(c)
	b.node.MustRun(c.With("DEL"))
}
