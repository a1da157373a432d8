package plans_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/without"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
)

// rdmaConfig returns a configuration of the chained plugin rdma.
func (b *bench) rdmaConfig(more map[string]any) string {
	return b.configOf(map[string]any{"cniVersion": "1.1.0", "name": "roce-net1", "type": "rdma", "stateDir": b.state}, more)
}

// prev returns a result of host-device, with an unknown field.
func (b *bench) prev(version string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"cniVersion":%q, "interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/run/netns/%s"}],`+
		`"ips":[{%s"address":"10.1.1.2/24","interface":0}],"dns":{},"x-unknown":[1,2]}`, version, b.pod.Name,
		map[bool]string{true: `"version":"4",`}[strings.HasPrefix(version, "0.")]))
}

// putRDMA writes RDMA devices lent in exclusive mode to the record of the
// attachment, or to one of the chained plugin's own.
func (b *bench) putRDMA() {
	b.t.Helper()
	l, err := ledger.Open(b.state)
	if err != nil {
		b.t.Fatal(err)
	}
	defer l.Close()
	key := ledger.Key{ContainerID: "c1", IfName: "net1"}
	r, err := l.Get(key)
	if err != nil {
		r = &ledger.Record{
			Key: key, Network: "roce-net1", Plugin: "rdma", Phase: ledger.Lent,
			Netns:     ledger.Netns{ID: b.pod.ID, Path: "/run/netns/" + b.pod.Name},
			HostNetns: ledger.Netns{ID: b.node.ID, Path: b.node.Path},
		}
	}
	r.RDMA = &ledger.RDMA{Mode: "exclusive", Devices: []ledger.RDMADevice{
		{Name: "mlx5_77", NodeGUID: 7, ParentDev: "0000:77:00.0", Port: 1, Uverbs: "uverbs77", Lent: true},
	}}
	if err := l.Put(r); err != nil {
		b.t.Fatal(err)
	}
}

func TestChainedRDMAWantsAChain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, verb := range []string{"ADD", "CHECK"} {
		_, err := b.node.Run(b.call(verb, b.rdmaConfig(nil)))
		fails(t, err, cnierr.InvalidConfig, "Required prevResult missing", `"plugins"`)
	}
	_, err := b.node.Run(b.call("ADD", b.rdmaConfig(map[string]any{"prevResult": "no result"})))
	fails(t, err, cnierr.Decode, "prevResult")
	own := b.call("ADD", b.rdmaConfig(map[string]any{"prevResult": b.prev("1.1.0")}))
	own.Netns = "/run/netns/" + b.node.Name
	_, err = b.node.Run(own)
	fails(t, err, cnierr.InvalidNetns, "own netns")
}

func TestChainedRDMAChangesNoResult(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.pod.NIC("net1", b.wire)
	for _, policy := range []string{"auto", "off"} {
		for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			prev := b.prev(version)
			out := b.node.MustRun(b.call("ADD", b.rdmaConfig(map[string]any{"cniVersion": version, "rdma": policy, "prevResult": prev})))
			if got, want := sorted(t, out), sorted(t, prev); got != want {
				t.Errorf("%s, %s:\n%s\nwant\n%s", policy, version, got, want)
			}
		}
	}
	// A runtime should pass it in the configuration's version, or without one.
	for version, text := range map[string]string{
		"1.0.0": string(b.prev("0.4.0")),
		"0.4.0": strings.Replace(string(b.prev("0.4.0")), `"cniVersion":"0.4.0", `, "", 1),
	} {
		out := b.node.MustRun(b.call("ADD", b.rdmaConfig(map[string]any{"cniVersion": version, "rdma": "auto", "prevResult": json.RawMessage(text)})))
		for _, want := range []string{`"cniVersion":"` + version, `"address":"10.1.1.2/24"`} {
			if got := sorted(t, out); !strings.Contains(got, want) {
				t.Errorf("%s lacks %s", got, want)
			}
		}
	}
	if r := b.records(); len(r) > 0 {
		t.Errorf("recorded: %+v", r[0])
	}
}

func sorted(t *testing.T, text []byte) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestChainedRDMAThatIsRequiredAndMissingLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	config := b.config(nil)
	result := b.node.MustRun(b.call("ADD", config))
	lent := b.records()[0]
	conf := map[string]any{"prevResult": json.RawMessage(result)}
	// A veth has no device.
	_, err := b.node.Run(b.call("ADD", b.rdmaConfig(conf)))
	fails(t, err, cnierr.NICNotFound, "net1", "no device of this host", `"deviceID"`)
	conf["deviceID"] = "0"
	_, err = b.node.Run(b.call("ADD", b.rdmaConfig(conf)))
	fails(t, err, cnierr.NICNotFound, `"0"`)
	if r := b.records(); len(r) != 1 || r[0].RDMA != nil || !r[0].Updated.Equal(lent.Updated) {
		t.Errorf("the records: %+v", r)
	}
	b.node.MustRun(b.call("DEL", b.rdmaConfig(conf)))
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// The chained plugin in this process, on a host whose sysfs is a fixture.
func TestChainedRDMAWithoutAnRDMACore(t *testing.T) {
	t.Parallel()
	if !without.RDMA(t) {
		return
	}
	b := newBench(t)
	n := b.open()
	n.Sys = t.TempDir()
	if err := os.MkdirAll(filepath.Join(n.Sys, "bus/auxiliary/devices/mlx5_core.sf.4"), 0o755); err != nil {
		t.Fatal(err)
	}
	for policy, text := range map[string]string{"required": "RDMA core", "auto": "", "": "RDMA core"} {
		conf, err := netconf.ParseRDMAChained([]byte(b.rdmaConfig(map[string]any{
			"rdma": policy, "deviceID": "mlx5_core.sf.4", "prevResult": b.prev("1.1.0"),
		})))
		if err != nil {
			t.Fatal(err)
		}
		c := &attachment.Call{Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/" + b.pod.Name, Conf: &conf.Common}
		p := plans.RDMAPlan(conf, t.TempDir())
		_, err = n.Add(context.Background(), c, p)
		status, check := n.Status(context.Background(), c, p), n.Check(context.Background(), c, p)
		if text == "" {
			if err != nil || status != nil || check != nil {
				t.Errorf("%q: ADD %v, STATUS %v, CHECK %v", policy, err, status, check)
			}
			continue
		}
		fails(t, err, cnierr.NotAvailable, text, "mlx5_core.sf.4", `"rdma": "auto"`)
		fails(t, status, cnierr.NotAvailable, text, "roce-net1")
		fails(t, check, cnierr.Mismatch, text)
		if r := b.records(); len(r) > 0 {
			t.Errorf("%q: recorded: %+v", policy, r[0])
		}
	}
}

// Another attachment's unreadable record prevents neither the ADD for a NIC
// whose RDMA devices cannot be lent, nor the end of rdma-cni's attachments.
func TestChainedRDMABesideARecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	if !without.RDMA(t) {
		return
	}
	b := newBench(t)
	n := b.open()
	n.Sys = t.TempDir()
	dir, file := t.TempDir(), "roce-net1-c1-net1"
	for path, text := range map[string]string{
		filepath.Join(n.Sys, "bus/auxiliary/devices/mlx5_core.sf.4/uevent"): "",
		filepath.Join(b.state, "attachments/c9@net1.json"):                  `{"version":99}`,
		filepath.Join(dir, file):                                            `{"deviceID":"mlx5_core.sf.4","sandboxRdmaDevName":"mlx5_4","containerRdmaDevName":"mlx5_4"}`,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	conf, err := netconf.ParseRDMAChained([]byte(b.rdmaConfig(map[string]any{
		"rdma": "auto", "deviceID": "mlx5_core.sf.4", "prevResult": b.prev("1.1.0"),
	})))
	if err != nil {
		t.Fatal(err)
	}
	c := &attachment.Call{Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/" + b.pod.Name, Conf: &conf.Common}
	p := plans.RDMAPlan(conf, dir)
	if _, err := n.Add(context.Background(), c, p); err != nil {
		t.Errorf("ADD: %v", err)
	}
	if err := n.Del(context.Background(), c, p); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
		t.Error("rdma-cni's record is left")
	}
}

func TestDelOfChainedRDMASucceedsWhateverThereIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	for name, change := range map[string]func(c *testnet.Call){
		"nothing":           func(*testnet.Call) {},
		"no netns":          func(c *testnet.Call) { c.Netns = "" },
		"a netns that died": func(c *testnet.Call) { c.Netns = "/run/netns/rail-of-yesterday" },
		"a broken config": func(c *testnet.Call) {
			c.Config = `{"cniVersion":"1.1.0","name":"n","type":"rdma","rdma":"perhaps","stateDir":"` + b.state + `"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, own := range []bool{false, true} {
				if own {
					b.putRDMA() // its device has been unplugged meanwhile
				}
				c := b.call("DEL", b.rdmaConfig(nil))
				change(&c)
				b.node.MustRun(c)
				b.untouched(before)
			}
		})
	}
}

// An RDMA record that names the host as the pod is set aside, and the DELs of
// both plugins use the interface.
func TestDelKeepsAnEditedRecordOfRDMAAside(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"rdma", "host-device"} {
		t.Run(plugin, func(t *testing.T) {
			b := newBench(t)
			before := b.node.State()
			b.node.MustRun(peer(t, b.call("ADD", b.config(map[string]any{"cniVersion": "1.0.0"}))))
			b.putRDMA()
			forge(t, b, func(r *ledger.Record) { r.Netns = r.HostNetns })
			calls := []testnet.Call{b.call("DEL", b.config(nil))}
			if plugin == "rdma" {
				calls = append([]testnet.Call{b.call("DEL", b.rdmaConfig(nil))}, calls...)
			}
			for _, c := range calls {
				b.node.MustRun(c)
			}
			if kept, _ := filepath.Glob(b.recordPath() + ".corrupt-*"); len(kept) != 1 {
				t.Errorf("kept aside: %q", kept)
			}
			b.fetch()
			b.untouched(before)
		})
	}
}

// The chained plugin removes only its part from a record of ours.
func TestDelOfChainedRDMALeavesTheNICLent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	before := b.node.State()
	for _, order := range [][]string{{"rdma", "host-device"}, {"host-device", "rdma"}} {
		b.node.MustRun(b.call("ADD", b.config(nil)))
		b.putRDMA()
		for _, plugin := range order {
			config := b.config(nil)
			if plugin == "rdma" {
				config = b.rdmaConfig(nil)
			}
			b.node.MustRun(b.call("DEL", config))
			if r := b.records(); plugin == "rdma" && order[0] == "rdma" && (len(r) != 1 || r[0].RDMA != nil || r[0].Phase != ledger.Lent || r[0].Loan == nil) {
				t.Errorf("after rdma's DEL: %+v", r)
			}
		}
		b.untouched(before)
	}
}

// If upstream's host-device made the interface, a record has only RDMA.
func TestRecordOfRDMAAloneIsEndedByAll(t *testing.T) {
	t.Parallel()
	t.Run("host-device DEL", func(t *testing.T) {
		b := newBench(t)
		before := b.node.State()
		b.node.MustRun(peer(t, b.call("ADD", b.config(map[string]any{"cniVersion": "1.0.0"}))))
		b.putRDMA()
		b.node.MustRun(b.call("DEL", b.config(nil)))
		b.fetch()
		b.untouched(before)
	})
	t.Run("host-device ADD", func(t *testing.T) {
		b := newBench(t)
		before := b.node.State()
		b.putRDMA()
		b.node.MustRun(b.call("ADD", b.config(nil)))
		if r := b.records(); len(r) != 1 || r[0].Loan == nil || r[0].RDMA != nil {
			t.Errorf("the records: %+v", r)
		}
		b.node.MustRun(b.call("DEL", b.config(nil)))
		b.untouched(before)
	})
	t.Run("sweep", func(t *testing.T) {
		b := newBench(t)
		before := b.node.State()
		b.putRDMA()
		n := b.open()
		if swept := n.Sweep(context.Background()); len(swept) != 0 {
			t.Errorf("the pod lives, but swept: %+v", swept[0])
		}
		b.pod.Delete()
		if swept := n.Sweep(context.Background()); len(swept) != 1 || swept[0].Err != nil {
			t.Errorf("swept: %+v", swept)
		}
		b.untouched(before)
	})
	t.Run("GC", func(t *testing.T) {
		b := newBench(t)
		before := b.node.State()
		b.putRDMA()
		valid := []map[string]string{{"containerID": "c1", "ifname": "net1"}}
		b.node.MustRun(b.call("GC", b.rdmaConfig(map[string]any{"cni.dev/valid-attachments": valid})))
		b.node.MustRun(b.call("GC", b.config(map[string]any{"cni.dev/valid-attachments": []any{}})))
		if len(b.records()) != 1 {
			t.Error("GC ended a valid attachment, or another plugin's")
		}
		b.node.MustRun(b.call("GC", b.rdmaConfig(map[string]any{"cni.dev/valid-attachments": []any{}})))
		b.untouched(before)
	})
}

// DEL removes rdma-cni's file of an attachment; other files stay.
func TestDelRemovesWhatRDMACNILeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	n := b.open()
	dir := t.TempDir()
	for file, content := range map[string]string{
		"roce-net1-c1-net1":  `{"version":"1.0","deviceID":"0000:77:00.0","sandboxRdmaDevName":"mlx5_77","containerRdmaDevName":"mlx5_77"}`,
		"roce-net1-c1-net2":  `{"version":"1.0","deviceID":"0000:78:00.0","sandboxRdmaDevName":"mlx5_78","containerRdmaDevName":"mlx5_78"}`,
		"roce-net1-c2-net1":  `{"vers`,
		"another-file-there": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conf, err := netconf.ParseRDMAChained([]byte(b.rdmaConfig(nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []ledger.Key{
		{ContainerID: "c1", IfName: "net1"},
		{ContainerID: "c1", IfName: "net1"},
		{ContainerID: "c2", IfName: "net1"},
		{ContainerID: "../c1", IfName: "net1"},
	} {
		c := &attachment.Call{Key: key, Netns: "/run/netns/" + b.pod.Name, Conf: &conf.Common}
		if err := n.Del(context.Background(), c, plans.RDMAPlan(conf, dir)); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() != "roce-net1-c1-net2" && f.Name() != "another-file-there" {
			t.Errorf("%s is left", f.Name())
		}
	}
	if len(files) != 2 {
		t.Errorf("%d files are left, want 2", len(files))
	}
}

// The chained plugin may have a record from a killed ADD, or a record whose devices are not
// where they should be. The next ADD first ends such a record, and then looks for the devices.
func TestChainedRDMAEndsItsOwnOldRecordFirst(t *testing.T) {
	t.Parallel()
	for _, phase := range []ledger.Phase{ledger.Lending, ledger.Lent, ledger.Returning, ledger.Freeing} {
		t.Run(string(phase), func(t *testing.T) {
			b := newBench(t)
			before := b.node.State()
			b.pod.NIC("net1", b.wire)
			b.putRDMA()
			l, err := ledger.Open(b.state)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r := b.records()[0]
			r.Phase = phase
			if err := l.Put(r); err != nil {
				t.Fatal(err)
			}
			b.node.MustRun(b.call("ADD", b.rdmaConfig(map[string]any{"rdma": "auto", "prevResult": b.prev("1.1.0")})))
			b.untouched(before)
		})
	}
}

// Another plugin's unfinished attachment gets no part.
func TestChainedRDMAAddsNothingToAnUnfinishedAttachment(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	result := b.node.MustRun(b.call("ADD", b.config(nil)))
	l, err := ledger.Open(b.state)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := b.records()[0]
	r.Phase = ledger.Returning
	if err := l.Put(r); err != nil {
		t.Fatal(err)
	}
	_, err = b.node.Run(b.call("ADD", b.rdmaConfig(map[string]any{"prevResult": json.RawMessage(result)})))
	fails(t, err, cnierr.TryAgain, "not complete (returning)", "DEL")
	b.node.MustRun(b.call("DEL", b.rdmaConfig(nil)))
	b.node.MustRun(b.call("DEL", b.config(nil)))
	b.untouched(before)
}

// TestRDMADevicesAreHeldByWhoeverLendsThem has a record of RDMA devices of a NIC. In shared mode, and
// where the attachment has ended, another pod may have them.
func TestRDMADevicesAreHeldByWhoeverLendsThem(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.state = filepath.Join(testnet.OnDisk(t), "state")
	n := b.open()
	b.putRDMA()
	for name, change := range map[string]func(*ledger.Record){
		"shared mode":    func(r *ledger.Record) { r.RDMA.Mode, r.RDMA.Devices[0].Lent = "shared", false },
		"another NIC":    func(r *ledger.Record) { r.RDMA.Devices[0].ParentDev = "0000:77:00.1" },
		"another boot":   func(r *ledger.Record) { r.BootID = "11111111-2222-3333-4444-555555555555" },
		"has ended":      func(r *ledger.Record) { r.Phase = ledger.Freeing },
		"exclusive mode": func(*ledger.Record) {},
	} {
		was := b.changeRecord(0, change)
		if held := rdmadev.HeldByAnother(n, "0000:77:00.0", ledger.Key{ContainerID: "c2", IfName: "net1"}); held != (name == "exclusive mode") {
			t.Errorf("%s: held %v", name, held)
		}
		if rdmadev.HeldByAnother(n, "0000:77:00.0", was.Key) {
			t.Errorf("%s: it holds them against itself", name)
		}
		b.changeRecord(0, func(r *ledger.Record) { *r = *was })
	}
}
