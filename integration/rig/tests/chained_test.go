//go:build rig

package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/migrate/rdmacni"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// chain is a host-device and an rdma behind it, each ours or the peer's, which
// attach the first NIC to a pod as net1.
type chain struct {
	*node
	pod               *pod
	peerNIC, peerRDMA bool
	nicConf, rdmaConf map[string]any // more keys of each
	before            string         // the host's links
	devices           map[string]string
	result            []byte // of host-device
}

// newChain returns a chain on a node in an RDMA mode, with a pod to attach to.
func newChain(t *testing.T, mode rdma.Mode) *chain {
	t.Helper()
	n := newRDMANode(t, mode, "")
	n.up(1)
	_ = os.RemoveAll(rdmacni.Records)
	c := &chain{node: n, before: n.State(), devices: n.rdmaState(n.Netns.Netns), nicConf: map[string]any{
		"cniVersion": "1.0.0", "name": "roce-net1", "ipam": map[string]any{
			"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}},
		},
	}, rdmaConf: map[string]any{}}
	c.pod = n.pod("trainer")
	return c
}

func (c *chain) nic(verb string) testnet.Call {
	c.t.Helper()
	call := c.pod.call(verb, "net1", c.config(0, c.nicConf))
	if c.peerNIC {
		call = upstream(c.t, call)
	}
	return call
}

func (c *chain) rdma(verb string) testnet.Call {
	c.t.Helper()
	conf := map[string]any{"cniVersion": "1.0.0", "name": "roce-net1", "type": "rdma", "stateDir": c.state}
	if c.result != nil {
		conf["prevResult"] = json.RawMessage(c.result)
	}
	if c.peerRDMA {
		conf["deviceID"] = nicPCI(0)
	}
	maps.Copy(conf, c.rdmaConf)
	text, err := json.Marshal(conf)
	if err != nil {
		c.t.Fatal(err)
	}
	call := c.pod.call(verb, "net1", string(text))
	call.Plugin = "rdma"
	if c.peerRDMA {
		call = upstream(c.t, call)
	}
	return call
}

// add attaches and returns what rdma printed.
func (c *chain) add() []byte {
	c.t.Helper()
	c.result = c.MustRun(c.nic("ADD"))
	return c.MustRun(c.rdma("ADD"))
}

// has fails the test unless the pod has the NIC's RDMA device and can use it.
func (c *chain) has() {
	c.t.Helper()
	core, err := rdma.Open(c.pod.Netns.Netns)
	if err != nil {
		c.t.Fatal(err)
	}
	defer core.Close() // it would keep a dead pod's netns alive
	found, err := core.ByParent(nicPCI(0))
	if err != nil || len(found) != 1 {
		c.t.Fatalf("RDMA devices of the NIC in the pod: %v, %v", found, err)
	}
	uverbs, err := core.Uverbs(found[0])
	if err != nil {
		c.t.Fatal(err)
	}
	if err := openIn(c.pod.Netns.Netns, uverbs.Path()); err != nil {
		c.t.Errorf("the pod opens its own %s: %v", uverbs.Name, err)
	}
	if err := openIn(c.Netns.Netns, uverbs.Path()); !errors.Is(err, unix.EPERM) {
		c.t.Errorf("the host opens the pod's %s: %v, want EPERM", uverbs.Name, err)
	}
}

// only returns the only record.
func (c *chain) only() *ledger.Record {
	c.t.Helper()
	records := c.records()
	if len(records) != 1 {
		c.t.Fatalf("%d records, want one: %+v", len(records), records)
	}
	return records[0]
}

// ended fails the test unless NIC and RDMA device are on the host and nothing
// is left.
func (c *chain) ended() {
	c.t.Helper()
	if c.peerNIC {
		c.fell()
		c.Batch(nil, "link set "+nicName(0)+" up") // upstream leaves it down
	}
	c.untouched(c.before)
	c.rdmaHome(c.devices)
	if left, _ := filepath.Glob(rdmacni.Records + "/*"); len(left) > 0 {
		c.t.Errorf("records of rdma-cni are left: %v", left)
	}
}

func sameJSON(t *testing.T, got, want []byte) {
	t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal(want, &b)); err != nil {
		t.Fatalf("%v\n%s\n%s", err, got, want)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("the result is\n%s\nwant prevResult\n%s", got, want)
	}
}

// An unreadable record may be of the pod that holds the RDMA device, but not if
// the host has the device.
func TestChainedRDMABesideARecordThatCannotBeRead(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.peerNIC = true
	newer := filepath.Join(c.state, "attachments", "c9@net1.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(newer), 0o700), os.WriteFile(newer, []byte(`{"version":99}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	c.result = c.MustRun(c.nic("ADD"))
	// Another pod has the device.
	other := c.node.pod("other")
	host, away := c.core(c.Netns.Netns), c.core(other.Netns.Netns)
	d, err := host.ByName("mlx5_0")
	if err != nil {
		t.Fatal(err)
	}
	moved, err := host.Move(t.Context(), d, away)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Run(c.rdma("ADD"))
	mustFail(t, err, cnierr.NICLent, nicPCI(0), "c9@net1.json")
	if _, err := away.Move(t.Context(), moved.Device, host); err != nil {
		t.Fatal(err)
	}
	c.MustRun(c.rdma("ADD"))
	c.has()
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
	if err := os.Remove(newer); err != nil {
		t.Fatal(err)
	}
	c.ended()
}

func TestChainedRDMAMovesTheDeviceBehindUpstreamsHostDevice(t *testing.T) {
	for name, ids := range need.SampleMap(t, 2, map[string]map[string]any{
		"by the interface":        {},
		"by deviceID":             {"deviceID": nicPCI(0), "pciBusID": nicPCI(0)},
		"by runtimeConfig":        {"runtimeConfig": map[string]any{"deviceID": nicPCI(0)}},
		"past a plugin's numbers": {"deviceID": "0"},
	}) {
		t.Run(name, func(t *testing.T) {
			c := newChain(t, rdma.Exclusive)
			c.peerNIC, c.rdmaConf = true, ids
			out := c.add()
			sameJSON(t, out, c.result)
			c.has()
			r := c.only()
			if r.HasInterface() || r.Phase != ledger.Lent || r.RDMA.Devices[0].Port != 1 || !r.RDMA.Devices[0].Lent || len(r.RDMA.GIDs) != 1 {
				t.Errorf("the record: %+v, RDMA %+v", r, r.RDMA)
			}
			c.MustRun(c.rdma("CHECK"))
			// A second ADD changes nothing.
			sameJSON(t, c.MustRun(c.rdma("ADD")), c.result)
			if again := c.only(); !again.Updated.Equal(r.Updated) {
				t.Error("the record was written again")
			}
			for range 2 {
				c.MustRun(c.rdma("DEL"))
				c.rdmaHome(c.devices)
				if got := c.records(); len(got) > 0 {
					t.Errorf("a record is left: %+v", got[0])
				}
			}
			c.MustRun(c.nic("DEL"))
			c.MustRun(c.rdma("DEL"))
			c.ended()
		})
	}
}

func TestChainedRDMABehindOurHostDevice(t *testing.T) {
	for _, chained := range need.Sample(t, 2, []struct {
		policy  string
		reverse bool
	}{{"auto", true}, {"auto", false}, {"off", true}, {"off", false}}) {
		policy, reverse := chained.policy, chained.reverse
		t.Run(fmt.Sprintf("rdma %s, DEL in reverse order %v", policy, reverse), func(t *testing.T) {
			c := newChain(t, rdma.Exclusive)
			c.nicConf["rdma"] = policy
			c.result = c.MustRun(c.nic("ADD"))
			first := c.only()
			sameJSON(t, c.MustRun(c.rdma("ADD")), c.result)
			c.has()
			r := c.only()
			if r.Plugin != "host-device" || r.RDMA == nil || len(r.RDMA.Devices) != 1 || !r.RDMA.Devices[0].Lent {
				t.Errorf("the record: %+v, RDMA %+v", r, r.RDMA)
			}
			if policy == "auto" && !r.Updated.Equal(first.Updated) {
				t.Error("what was recorded was recorded again")
			}
			c.MustRun(c.rdma("CHECK"))
			if reverse {
				c.MustRun(c.rdma("DEL"))
				c.rdmaHome(c.devices)
				if r := c.only(); r.RDMA != nil || r.Phase != ledger.Lent {
					t.Errorf("after rdma's DEL: phase %s, RDMA %+v", r.Phase, r.RDMA)
				}
				c.MustRun(c.nic("DEL"))
			} else {
				c.MustRun(c.nic("DEL"))
				c.MustRun(c.rdma("DEL"))
			}
			c.ended()
		})
	}
}

func TestRDMACNIBehindOurHostDevice(t *testing.T) {
	for _, reverse := range []bool{true, false} {
		t.Run(fmt.Sprintf("rdma off, DEL in reverse order %v", reverse), func(t *testing.T) {
			c := newChain(t, rdma.Exclusive)
			c.peerRDMA, c.nicConf["rdma"] = true, "off"
			c.add()
			c.has()
			calls := []testnet.Call{c.rdma("DEL"), c.nic("DEL")}
			if !reverse {
				slices.Reverse(calls)
			}
			for _, call := range calls {
				c.MustRun(call)
			}
			c.ended()
		})
	}
	// If ours has moved the device, rdma-cni finds none and fails its ADD: our
	// rdma belongs in its place, or "rdma": "off" into ours.
	t.Run("moved already", func(t *testing.T) {
		c := newChain(t, rdma.Exclusive)
		c.peerRDMA = true
		c.result = c.MustRun(c.nic("ADD"))
		_, err := c.Run(c.rdma("ADD"))
		if err == nil || !strings.Contains(err.Error(), "no RDMA devices found") {
			t.Errorf("rdma-cni: %v", err)
		}
		c.has()
		c.MustRun(c.rdma("DEL"))
		c.MustRun(c.nic("DEL"))
		c.ended()
	})
}

// Ours ends the attachments of rdma-cni after the switch-over.
func TestOursEndsWhatRDMACNIBegan(t *testing.T) {
	for name, meanwhile := range need.SampleMap(t, 2, map[string]func(c *chain){
		"nothing happened": func(*chain) {},
		"the pod died":     func(c *chain) { c.pod.Kill() },
		"renamed in the pod": func(c *chain) {
			core := c.core(c.pod.Netns.Netns)
			d, err := core.ByName("mlx5_0")
			if err == nil {
				err = core.Rename(d, "rocep9s0")
			}
			if err != nil {
				c.t.Fatal(err)
			}
		},
		"its record was lost": func(c *chain) {
			if err := os.RemoveAll(rdmacni.Records); err != nil {
				c.t.Fatal(err)
			}
		},
		"its record is cut off": func(c *chain) {
			name := filepath.Join(rdmacni.Records, "roce-net1-trainer-net1")
			if err := os.Truncate(name, 20); err != nil {
				c.t.Fatal(err)
			}
		},
	}) {
		for _, peerNIC := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, host-device of upstream %v", name, peerNIC), func(t *testing.T) {
				c := newChain(t, rdma.Exclusive)
				c.peerNIC, c.peerRDMA, c.nicConf["rdma"] = peerNIC, true, "off"
				c.add()
				c.has()
				c.peerRDMA = false
				if name == "nothing happened" {
					c.MustRun(c.rdma("CHECK"))
				}
				meanwhile(c)
				c.MustRun(c.rdma("DEL"))
				c.rdmaHome(c.devices)
				if c.peerNIC && name == "the pod died" {
					// Upstream's DEL fails for a pod that is gone.
					c.fell()
					c.nameAgain()
				} else {
					c.MustRun(c.nic("DEL"))
				}
				c.MustRun(c.rdma("DEL"))
				c.ended()
			})
		}
	}
}

// fell waits until the NIC is on the host, under any name.
func (c *chain) fell() {
	c.t.Helper()
	if !testnet.Within(10*time.Second, func() bool {
		links, err := link.Links(c.node.Netns.Netns)
		if err != nil {
			c.t.Fatal(err)
		}
		return slices.ContainsFunc(links, func(l *link.Link) bool { return l.ParentDev == nicPCI(0) })
	}) {
		c.t.Fatalf("%s has not returned", nicName(0))
	}
}

// nameAgain renames the NIC that the kernel returned, and removes its alias.
func (c *chain) nameAgain() {
	c.t.Helper()
	links, err := link.Links(c.node.Netns.Netns)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range links {
		if l.ParentDev == nicPCI(0) {
			c.Batch(nil, "link set "+l.Name+" down", fmt.Sprintf("link set %s name %s alias ''", l.Name, nicName(0)))
		}
	}
}

func TestChainedRDMAInSharedModeAwaitsTheGIDs(t *testing.T) {
	for _, peerNIC := range []bool{true, false} {
		t.Run(fmt.Sprintf("host-device of upstream %v", peerNIC), func(t *testing.T) {
			c := newChain(t, rdma.Shared)
			c.peerNIC, c.nicConf["rdma"] = peerNIC, "off"
			sameJSON(t, c.add(), c.result)
			if got := c.rdmaState(c.Netns.Netns); !maps.Equal(got, c.devices) {
				t.Errorf("shared mode moved something: %v", got)
			}
			c.gidsRight(c.only(), 1)
			c.MustRun(c.rdma("CHECK"))
			c.MustRun(c.rdma("DEL"))
			c.MustRun(c.nic("DEL"))
			c.ended()
		})
	}
	t.Run("macvlan of upstream", func(t *testing.T) {
		c := newChain(t, rdma.Shared)
		c.peerNIC = true
		maps.Copy(c.nicConf, map[string]any{"type": "macvlan", "device": nil, "master": nicName(0)})
		macvlan := func(verb string) testnet.Call {
			call := c.pod.call(verb, "net1", c.config(0, c.nicConf))
			call.Plugin = "macvlan"
			return upstream(t, call)
		}
		c.result = c.MustRun(macvlan("ADD"))
		sameJSON(t, c.MustRun(c.rdma("ADD")), c.result)
		c.gidsRight(c.only(), 1)
		c.keep()
		c.countersOfHost(0)
		c.MustRun(c.rdma("CHECK"))
		c.MustRun(c.rdma("DEL"))
		c.MustRun(macvlan("DEL"))
		c.ended()
	})
}

func TestChainedRDMAOfAMacvlanInExclusiveMode(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.rdmaConf["cniVersion"] = "1.1.0"
	macvlan := func(verb string) testnet.Call {
		call := c.pod.call(verb, "net1", c.config(0, map[string]any{"type": "macvlan", "device": nil, "master": nicName(0)}))
		call.Plugin = "macvlan"
		return call
	}
	c.result = c.MustRun(macvlan("ADD"))
	if _, err := c.Run(c.rdma("ADD")); cnierr.Code(err) != cnierr.NotAvailable || !strings.Contains(err.Error(), "netns_mode=1") {
		t.Errorf("required: %v", err)
	}
	c.rdmaConf["rdma"] = "auto"
	sameJSON(t, c.MustRun(c.rdma("ADD")), c.result)
	c.MustRun(c.rdma("DEL"))
	c.MustRun(macvlan("DEL"))
	c.ended()
}

func TestChainedRDMAComesHomeFromADeadPod(t *testing.T) {
	for name, end := range need.SampleMap(t, 2, map[string]func(c *chain){
		"by DEL": func(c *chain) { c.MustRun(c.rdma("DEL")) },
		"by DEL without a netns": func(c *chain) {
			call := c.rdma("DEL")
			call.Netns = ""
			c.MustRun(call)
		},
		"by a sweep": func(c *chain) {
			for deadline := time.Now().Add(5 * time.Second); len(c.records()) > 0 && time.Now().Before(deadline); {
				c.gc()
			}
		},
		"by the next ADD": func(c *chain) {
			old := c.pod
			c.pod = c.node.pod("next")
			c.fell()
			c.nameAgain()
			c.add()
			c.has()
			c.MustRun(c.rdma("DEL"))
			c.MustRun(c.nic("DEL"))
			c.pod = old
		},
	}) {
		t.Run(name, func(t *testing.T) {
			c := newChain(t, rdma.Exclusive)
			c.peerNIC = true
			c.add()
			c.has()
			c.pod.Kill()
			end(c)
			c.rdmaHome(c.devices)
			c.MustRun(c.rdma("DEL"))
			c.fell()
			c.nameAgain()
			c.ended()
		})
	}
}

// Ours ends both, in any order of the chain's DELs, or with one alone.
func TestOurHostDeviceEndsAChainThatItDidNotBegin(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.peerNIC = true
	c.add()
	c.MustRun(c.pod.call("DEL", "net1", c.config(0, c.nicConf)))
	c.ended()
	c.MustRun(c.rdma("DEL"))
	c.ended()
}

func TestChainedRDMAThatCannotMoveLeavesNothing(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	reload(t, "movable=0")
	c.up(1)
	c.before, c.devices = c.State(), c.rdmaState(c.Netns.Netns)
	for _, off := range []bool{true, false} {
		c.peerNIC, c.nicConf["rdma"] = !off, "off"
		c.result = c.MustRun(c.nic("ADD"))
		if _, err := c.Run(c.rdma("ADD")); cnierr.Code(err) != cnierr.Kernel || !strings.Contains(err.Error(), "does not support moving") {
			t.Errorf("it says: %v", err)
		}
		for _, r := range c.records() {
			if r.RDMA != nil || !r.HasInterface() {
				t.Errorf("recorded: %+v", r.RDMA)
			}
		}
		c.MustRun(c.rdma("DEL"))
		c.MustRun(c.nic("DEL"))
		c.ended()
	}
}

// A device that another pod has is refused, and the DEL after the failed ADD
// does not take it from that pod.
func TestChainedRDMAOfAnotherPodStaysThere(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.peerNIC, c.rdmaConf["deviceID"] = true, nicPCI(0)
	c.add()
	first := c.pod
	c.pod = c.node.pod("other")
	_, err := c.Run(c.rdma("ADD"))
	if cnierr.Code(err) != cnierr.NICLent || !strings.Contains(err.Error(), "trainer") {
		t.Errorf("it says: %v", err)
	}
	c.MustRun(c.rdma("DEL"))
	c.pod = first
	c.has()
	c.MustRun(c.rdma("CHECK"))
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
	c.ended()
}

func TestChainedRDMAOfADPDKPodMovesTheDeviceAlone(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.nicConf = map[string]any{"cniVersion": "1.0.0", "name": "roce-net1", "device": nil, "deviceID": nicPCI(0), "DPDKMode": true}
	c.rdmaConf["deviceID"] = nicPCI(0)
	c.add()
	c.has()
	if _, err := link.ByName(c.node.Netns.Netns, nicName(0)); err != nil {
		t.Error("the netdev moved:", err)
	}
	c.MustRun(c.nic("DEL")) // alone: it returns the RDMA device as well
	c.ended()
	c.MustRun(c.rdma("DEL"))
	c.ended()
}

func TestStatusAndGCOfChainedRDMA(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.peerNIC = true
	c.add()
	c.rdmaConf["cniVersion"], c.rdmaConf["prevResult"] = "1.1.0", nil
	c.MustRun(c.rdma("STATUS"))
	c.rdmaConf["cni.dev/valid-attachments"] = []map[string]string{{"containerID": "trainer", "ifname": "net1"}}
	c.MustRun(c.rdma("GC"))
	c.has()
	c.rdmaConf["cni.dev/valid-attachments"] = []map[string]string{}
	c.MustRun(c.rdma("GC"))
	c.rdmaHome(c.devices)
	c.MustRun(c.nic("DEL"))
	c.ended()
}

func TestChainedRDMAWaitsForTheLinkThatItsNetworkAsksFor(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.nicConf["rdma"] = "off"
	setDriver(t, "link_delay_ms", "6000")
	c.rdmaConf["rdma"] = "required"
	c.add()
	if state := c.pod.portState(t); state != rdma.PortActive {
		t.Errorf("the port is %s after ADD", state)
	}
	if r := c.only(); r.Link == nil || !r.Link.Up || r.Link.WaitedMS == 0 {
		t.Errorf("link in the record: %+v", r.Link)
	}
	c.MustRun(c.rdma("DEL"))

	setDriver(t, "port_down", "Y")
	c.rdmaConf["linkTimeout"] = "300ms"
	_, err := c.Run(c.rdma("ADD"))
	mustFail(t, err, cnierr.TryAgain, `"rdma" is required`, "port 1 of mlx5_0 is DOWN", "after it was set up", `"linkTimeout"`)

	// As rdma-cni's users have it.
	delete(c.rdmaConf, "rdma")
	delete(c.rdmaConf, "linkTimeout")
	_, said, err := c.RunSaying(c.rdma("ADD"))
	if err != nil || !strings.Contains(said, "pod starts while its link is down") || !strings.Contains(said, "port 1 of mlx5_0 is DOWN") {
		t.Errorf("ADD without keys: %v, %s", err, said)
	}
	c.has()
	setDriver(t, "port_down", "N")
	setDriver(t, "link_delay_ms", "0")
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
	c.untouched(c.before)
}

// The record of the chained plugin stands for a NIC that another plugin has lent.
func TestLinkOfANICBehindAnotherPluginIsTold(t *testing.T) {
	for _, mode := range []rdma.Mode{rdma.Exclusive, rdma.Shared} {
		t.Run(string(mode), func(t *testing.T) {
			c := newChain(t, mode)
			c.peerNIC = true
			maps.Copy(c.rdmaConf, map[string]any{"rdma": "auto", "linkTimeout": "100ms"})
			log := c.keep()
			setDriver(t, "link_delay_ms", "3600000")
			c.add()
			if r := c.only(); r.Link == nil || r.Link.Up || r.RDMA.PodIndex == 0 {
				t.Fatalf("the record: link %+v, RDMA %+v", r.Link, r.RDMA)
			}
			labels := `{ifname="net1",nic="` + nicPCI(0) + `"`
			told := func(link, port, shown string) {
				t.Helper()
				c.exported("rail_cni_link_up" + labels + "} " + link)
				c.exported(`rail_cni_port_active` + labels + `,port="1",rdma_device="mlx5_0"} ` + port)
				c.eventually("railctl show has "+shown, func() bool {
					out, _, _ := c.railctl("show")
					return strings.Contains(strings.Join(strings.Fields(out), " "), shown)
				})
			}
			told("0", "0", "9000 down 172.31.1.9/24 mlx5_0/1 DOWN")
			if !slices.ContainsFunc(c.scrape(), func(line string) bool {
				return strings.HasPrefix(line, "rail_cni_link_wait_seconds"+labels+"} 0.1")
			}) {
				t.Errorf("how long ADD waited is missing in\n%s", strings.Join(c.scrape(), ""))
			}
			c.pod.IP("link", "set", "net1", "carrier", "on")
			told("1", "1", "9000 up 172.31.1.9/24 mlx5_0/1 ACTIVE")
			c.eventually("the agent announces the address", func() bool { return strings.Contains(log(), "carrier came after ADD") })
			setDriver(t, "link_delay_ms", "0")
			c.pod.IP("link", "set", "net1", "carrier", "off")
			told("0", "0", "9000 down 172.31.1.9/24 mlx5_0/1 DOWN")
			c.MustRun(c.rdma("DEL"))
			c.MustRun(c.nic("DEL"))
			c.ended()
		})
	}
}
