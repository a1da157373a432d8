package plans_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// ipamSpy is a bench with the IPAM plugin "whereabouts" that writes down its calls.
type ipamSpy struct {
	*railBench
	log string
}

func newIPAMSpy(t *testing.T, nodeFile string) *ipamSpy {
	t.Helper()
	s := &ipamSpy{railBench: newRailBench(t, nodeFile), log: filepath.Join(t.TempDir(), "log")}
	s.path = t.TempDir()
	writeExecutable(t, filepath.Join(s.path, "whereabouts"), "#!/bin/sh\n{ printf '%s ' $CNI_COMMAND; tr -d '\\n'; echo; } >>"+s.log+
		"\n[ $CNI_COMMAND = ADD ] && echo '"+spyResult+"' || true\n")
	return s
}

// told returns the calls of a verb since the last told: the range or the pool of each.
func (s *ipamSpy) told(verb string) []string {
	s.t.Helper()
	text, _ := os.ReadFile(s.log) // none without a call
	if err := os.WriteFile(s.log, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		name, config, _ := strings.Cut(line, " ")
		if name != verb {
			continue
		}
		var conf struct {
			IPAM struct{ Range, PoolName string }
		}
		if err := json.Unmarshal([]byte(config), &conf); err != nil {
			s.t.Fatalf("%v: %s", err, config)
		}
		all = append(all, cmp.Or(conf.IPAM.Range, conf.IPAM.PoolName))
	}
	slices.Sort(all)
	return all
}

func (s *ipamSpy) call(config string) (*attachment.Call, *attachment.Plan) {
	s.t.Helper()
	c, p := s.plan("c1", "net1", config)
	c.Path = s.path
	return c, p
}

// wants fails the test unless the calls of a verb had these ranges or pools.
func (s *ipamSpy) wants(verb string, want ...string) {
	s.t.Helper()
	if got := s.told(verb); !slices.Equal(got, want) {
		s.t.Errorf("%s: the IPAM plugin has got %q, want %q", verb, got, want)
	}
}

// numbered sets the node's number.
func (s *ipamSpy) numbered(node int) {
	s.opened.File.Node = &node
}

func TestIPAMPluginGetsTheAddressesOfTheRail(t *testing.T) {
	t.Parallel()
	second := railNICs[1]
	for name, more := range map[string]map[string]any{
		"host-device, auto":      {"device": nil, "deviceID": second.pci, "rail": "auto"},
		"host-device, a number":  {"device": nil, "rail": 1},
		"host-device, no rail":   {"device": second.name},
		"macvlan, auto":          {"type": "macvlan", "device": nil, "master": second.name, "rail": "auto"},
		"macvlan, a number":      {"type": "macvlan", "device": nil, "rail": 1},
		"macvlan without a rail": {"type": "macvlan", "device": nil, "master": second.name},
	} {
		t.Run(name, func(t *testing.T) {
			b := newIPAMSpy(t, railsInOrder+"\nnode: 12")
			before := b.node.State()
			more["ipam"] = map[string]any{"type": "whereabouts", "range": "10.${rail}.${node}.0/24"}
			config := b.config(more)
			call, plan := b.call(config)
			result, err := b.opened.Add(context.Background(), call, plan)
			if err != nil {
				t.Fatal(err)
			}
			b.wants("ADD", "10.1.12.0/24")
			r, err := b.opened.Ledger.Get(call.Key)
			if err != nil {
				t.Fatal(err)
			}
			if r.Rail == nil || *r.Rail != 1 || !strings.Contains(string(r.IPAM.Config), `"10.1.12.0/24"`) || strings.Contains(string(r.IPAM.Config), "${") {
				t.Errorf("the record has rail %v, and %s", r.Rail, r.IPAM.Config)
			}
			// Whatever the node file says since, the address is freed where it is.
			b.numbered(77)
			check, plan := b.call(b.withPrevResult(config, result))
			if err := b.opened.Check(context.Background(), check, plan); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			b.wants("CHECK", "10.1.12.0/24")
			b.opened.File = nil
			call, plan = b.call(config)
			if err := b.opened.Del(context.Background(), call, plan); err != nil {
				t.Errorf("DEL: %v", err)
			}
			b.wants("DEL", "10.1.12.0/24")
			b.untouched(before)
		})
	}
}

// A verb without an attachment is for the pools of all rails that the network can have.
func TestVerbsWithoutAnAttachmentAreForEveryRail(t *testing.T) {
	t.Parallel()
	every := []string{"10.0.12.0/24", "10.1.12.0/24", "10.2.12.0/24"}
	for name, c := range map[string]struct {
		more map[string]any
		want []string
	}{
		"auto":              {map[string]any{"device": nil, "rail": "auto"}, every},
		"a number":          {map[string]any{"device": nil, "rail": 2}, every[2:]},
		"macvlan, auto":     {map[string]any{"type": "macvlan", "device": nil, "master": nicName, "rail": "auto"}, every},
		"macvlan, a number": {map[string]any{"type": "macvlan", "device": nil, "rail": 2}, every[2:]},
	} {
		t.Run(name, func(t *testing.T) {
			b := newIPAMSpy(t, railsInOrder+"\nnode: 12")
			before := b.node.State()
			c.more["ipam"] = map[string]any{"type": "whereabouts", "range": "10.${rail}.${node}.0/24"}
			call, plan := b.call(b.config(c.more))
			ctx := context.Background()
			if err := b.opened.Status(ctx, call, plan); err != nil {
				t.Errorf("STATUS: %v", err)
			}
			b.wants("STATUS", c.want...)
			none := []types.GCAttachment{}
			call.Conf.ValidAttachments = &none
			if err := b.opened.GC(ctx, call); err != nil {
				t.Errorf("GC: %v", err)
			}
			b.wants("GC", c.want...)
			if err := b.opened.Del(ctx, call, plan); err != nil {
				t.Errorf("DEL: %v", err)
			}
			b.wants("DEL", c.want...)

			// Without rails no ADD can have succeeded, and DEL has nothing to do.
			b.opened.File = nil
			if err := b.opened.Del(ctx, call, plan); err != nil {
				t.Errorf("DEL without rails: %v", err)
			}
			b.wants("DEL")
			fails(t, b.opened.Status(ctx, call, plan), cnierr.NotAvailable, "no rails")
			b.wants("STATUS")
			b.untouched(before)
		})
	}
}

// nv-ipam has a pool of addresses for each rail, and knows no rails.
func TestIPAMPluginOfOthersGetsThePoolOfTheRail(t *testing.T) {
	t.Parallel()
	b := newIPAMSpy(t, railsInOrder)
	if err := os.Rename(filepath.Join(b.path, "whereabouts"), filepath.Join(b.path, "nv-ipam")); err != nil {
		t.Fatal(err)
	}
	before := b.node.State()
	config := b.config(map[string]any{
		"device": nil, "deviceID": railNICs[1].pci, "rail": "auto",
		"ipam": map[string]any{"type": "nv-ipam", "poolName": "rail-${rail}", "poolType": "cidrpool"},
	})
	call, plan := b.call(config)
	result, err := b.opened.Add(context.Background(), call, plan)
	if err != nil {
		t.Fatal(err)
	}
	b.wants("ADD", "rail-1")
	check, plan := b.call(b.withPrevResult(config, result))
	if err := b.opened.Check(context.Background(), check, plan); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	b.wants("CHECK", "rail-1")
	for _, pools := range [][]string{{"rail-1"}, {"rail-0", "rail-1", "rail-2"}} { // the second DEL has no record
		call, plan = b.call(config)
		if err := b.opened.Del(context.Background(), call, plan); err != nil {
			t.Errorf("DEL: %v", err)
		}
		b.wants("DEL", pools...)
	}
	b.untouched(before)
}

func TestAddressesOfARailThatIsNotThere(t *testing.T) {
	t.Parallel()
	second := railNICs[1]
	one := fmt.Sprintf(`rails: [{id: 4, pci: "%s"}]`, railNICs[0].pci)
	ranged := func(text string) map[string]any { return map[string]any{"type": "whereabouts", "range": text} }
	for name, c := range map[string]struct {
		file  string
		more  map[string]any
		texts []string
	}{
		"auto and a NIC without a rail": {one, map[string]any{"device": nil, "deviceID": second.pci, "rail": "auto"}, []string{second.name, "has no rail", nodefile.DefaultPath, "railctl rails discover"}},
		"auto and no rails":             {"node: 1", map[string]any{"device": nil, "deviceID": second.pci, "rail": "auto"}, []string{"no rails", "railctl rails discover"}},
		"a range and no rail":           {one, map[string]any{"device": second.name, "ipam": ranged("10.${rail}.0.0/16")}, []string{second.name, "has no rail"}},
		"no number":                     {railsInOrder, map[string]any{"device": second.name, "ipam": ranged("10.0.${node}.0/24")}, []string{"${node}", `"node" in the node file`}},
		"no prefix":                     {railsInOrder, map[string]any{"device": second.name, "ipam": map[string]any{"type": "whereabouts", "prefix": "node"}}, []string{"no prefix for rail 1", `"prefixes"`}},
		"overlap":                       {railsInOrder, map[string]any{"device": second.name, "ipam": ranged("10.${rail}.0.0/8")}, []string{"rail 1 beside rail 0", "overlap"}},
		"macvlan, auto":                 {one, map[string]any{"type": "macvlan", "device": nil, "master": second.name, "rail": "auto"}, []string{second.name, "has no rail"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newIPAMSpy(t, c.file)
			before := b.node.State()
			call, plan := b.call(b.config(c.more))
			_, err := b.opened.Add(context.Background(), call, plan)
			fails(t, err, cnierr.InvalidConfig, c.texts...)
			b.wants("ADD")
			b.untouched(before)
		})
	}
}

func TestPrefixOfTheNodeIsThatOfTheRail(t *testing.T) {
	t.Parallel()
	b := newIPAMSpy(t, railsInOrder+"\nprefixes: [{rail: 0, prefix: 10.200.0.0/31}, {rail: 1, prefix: 10.200.1.0/31, gateway: 10.200.1.1}]")
	call, plan := b.call(b.config(map[string]any{"device": nil, "rail": 1, "ipam": map[string]any{"type": "whereabouts", "prefix": "node"}}))
	if _, err := b.opened.Add(context.Background(), call, plan); err != nil {
		t.Fatal(err)
	}
	text := string(readFile(t, b.log))
	for _, want := range []string{`"range":"10.200.1.0/31"`, `"gateway":"10.200.1.1"`, `"store":"local"`, `"prefix":"node"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the IPAM plugin lacks %s: %s", want, text)
		}
	}
	if err := b.opened.Del(context.Background(), call, plan); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// A network of today reads no rails: the entry of the node file that matches no NIC is not
// noticed.
func TestNetworkWithoutRailsReadsNone(t *testing.T) {
	t.Parallel()
	b := newIPAMSpy(t, "rails: [{id: 3, name: nowhere}]")
	var log bytes.Buffer
	b.opened.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, more := range []map[string]any{{}, {"type": "macvlan", "device": nil, "master": nicName}} {
		more["ipam"] = map[string]any{"type": "whereabouts", "range": "10.9.0.0/24"}
		call, plan := b.call(b.config(more))
		if _, err := b.opened.Add(context.Background(), call, plan); err != nil {
			t.Fatal(err)
		}
		if r := b.records()[0]; r.Rail != nil {
			t.Errorf("the record has rail %d", *r.Rail)
		}
		if err := b.opened.Del(context.Background(), call, plan); err != nil {
			t.Error(err)
		}
		if strings.Contains(log.String(), "rails") {
			t.Errorf("the rails were read: %s", log.String())
		}
		more["rail"] = "auto"
		call, plan = b.call(b.config(more))
		if _, err := b.opened.Add(context.Background(), call, plan); err == nil || !strings.Contains(log.String(), "rails") {
			t.Errorf("%v; no problem with the rails is logged: %s", err, log.String())
		}
		log.Reset()
	}
}

// One network serves all rails, in whatever order Multus passes the NICs.
func TestOneNetworkForAllRails(t *testing.T) {
	t.Parallel()
	b := newRailBench(t, railsInOrder)
	before := b.node.State()
	path := pluginDir(t)
	config := func(pci string) string {
		return b.config(map[string]any{"device": nil, "rail": "auto", "deviceID": pci, "pciBusID": pci, "ipam": map[string]any{
			"type": "whereabouts", "range": "10.${rail}.0.0/16", "gateway": "10.${rail}.0.1", "routes": []any{map[string]any{"dst": "10.0.0.0/8", "gw": "10.${rail}.0.1"}},
		}})
	}
	order := []int{2, 0, 1}
	for i, rail := range order {
		call, plan := b.plan("c1", fmt.Sprintf("net%d", i+1), config(railNICs[rail].pci))
		call.Path = path
		out, err := b.opened.Add(context.Background(), call, plan)
		if err != nil {
			t.Fatal(err)
		}
		var result current.Result
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatal(err)
		}
		address, gateway := fmt.Sprintf("10.%d.0.2/16", rail), fmt.Sprintf("10.%d.0.1", rail)
		if len(result.IPs) != 1 || result.IPs[0].Address.String() != address || len(result.Routes) != 1 || result.Routes[0].GW.String() != gateway {
			t.Errorf("rail %d: %s", rail, out)
		}
		b.hasPCI(railNICs[rail].name, railNICs[rail].pci)
	}
	for i, rail := range order {
		call, plan := b.plan("c1", fmt.Sprintf("net%d", i+1), config(railNICs[rail].pci))
		call.Path = path
		if err := b.opened.Del(context.Background(), call, plan); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	b.untouched(before)
}

// keptAddresses are the addresses that a NIC has on the host. NetworkManager adds the on-link
// route itself (noprefixroute).
var keptAddresses = [][]string{
	{"10.200.3.6/31"}, {"10.8.0.7/24", "noprefixroute"}, {"fd00:7::6/127"}, {"fd00:8::1/64", "noprefixroute"},
}

func TestKeptAddressIsThatOfTheHostBothWays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	for _, words := range keptAddresses {
		b.node.IP(append([]string{"addr", "add", words[0], "dev", nicName}, words[1:]...)...)
	}
	before := b.node.State()
	config := b.config(map[string]any{"keepAddress": true, "cniVersion": "1.0.0"})
	opened := b.open()
	call, plan := (&railBench{bench: b, opened: opened}).plan("c1", "net1", config)
	out, err := opened.Add(context.Background(), call, plan)
	if err != nil {
		t.Fatal(err)
	}
	pod := b.pod.IP("addr", "show", "net1")
	routes := b.pod.IP("route", "show", "table", "all") + b.pod.IP("-6", "route")
	for _, want := range []string{"inet 10.200.3.6/31", "inet 10.8.0.7/24", "inet6 fd00:7::6/127", "inet6 fd00:8::1/64", "inet 10.9.0.1/24"} {
		if !strings.Contains(pod, want) {
			t.Errorf("the pod lacks %q:\n%s", want, pod)
		}
	}
	for _, want := range []string{"10.200.3.6/31 dev net1", "10.8.0.0/24 dev net1", "10.9.0.0/24 dev net1", "fd00:7::6/127 dev net1", "fd00:8::/64 dev net1"} {
		if !strings.Contains(routes, want) {
			t.Errorf("the pod lacks the on-link route %q:\n%s", want, routes)
		}
	}
	for _, not := range []string{"10.20.0.0/16", "table 101", "fd00:20::/48"} {
		if strings.Contains(routes, not) {
			t.Errorf("the pod has the host's route %q:\n%s", not, routes)
		}
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatal(err)
	}
	gateways := map[string]string{}
	for _, ip := range result.IPs {
		gateways[ip.Address.String()] = ip.Gateway.String()
	}
	if len(gateways) != 8 || gateways["10.200.3.6/31"] != "10.200.3.7" || gateways["fd00:7::6/127"] != "fd00:7::7" || gateways["10.8.0.7/24"] != "<nil>" || len(result.Routes) != 0 {
		t.Errorf("the result: %s", out)
	}
	if r := b.records()[0]; len(r.Addresses) != len(gateways) || !slices.Contains(r.Addresses, "10.200.3.6/31") {
		t.Errorf("the record has the addresses %v", r.Addresses)
	}
	check, plan := (&railBench{bench: b, opened: opened}).plan("c1", "net1", b.withPrevResult(config, out))
	if err := opened.Check(context.Background(), check, plan); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := opened.Del(context.Background(), call, plan); err != nil {
		t.Errorf("DEL: %v", err)
	}
	b.untouched(before)
}

// The switch port of a /31 is reached by the kept address.
func TestKeptAddressReachesItsSwitchPort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("addr", "add", "10.200.3.6/31", "dev", nicName)
	leaf := strings.TrimSpace(strings.SplitN(b.wire.IP("-o", "link", "show", "type", "veth"), ":", 3)[1])
	leaf, _, _ = strings.Cut(leaf, "@")
	b.wire.IP("addr", "add", "10.200.3.7/31", "dev", leaf)
	b.wire.IP("link", "set", leaf, "up")
	opened := b.open()
	call, plan := (&railBench{bench: b, opened: opened}).plan("c1", "net1", b.config(map[string]any{"keepAddress": true}))
	if _, err := opened.Add(context.Background(), call, plan); err != nil {
		t.Fatal(err)
	}
	b.pod.Exec("ping", "-c", "1", "-W", "5", "10.200.3.7")
	if err := opened.Del(context.Background(), call, plan); err != nil {
		t.Error(err)
	}
}

func TestNICWithoutAnAddressToKeepIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("addr", "add", "169.254.7.7/16", "scope", "link", "dev", nicName)
	before := b.node.State()
	opened := b.open()
	call, plan := (&railBench{bench: b, opened: opened}).plan("c1", "net1", b.config(map[string]any{"keepAddress": true}))
	_, err := opened.Add(context.Background(), call, plan)
	fails(t, err, cnierr.InvalidConfig, nicName, "no address of global scope", "give the NIC an address")
	b.untouched(before)
	for _, more := range []map[string]any{{"ipam": localIPAM("10.0.0.0/24")}, {"useInterfaceNetwork": true}} {
		more["keepAddress"] = true
		_, err := netconf.ParseHostDevice([]byte(b.config(more)))
		fails(t, err, cnierr.InvalidConfig, `"keepAddress" and`, "remove one")
	}
}

// A record of a killed ADD has the expanded configuration: the sweep frees the address.
func TestKilledADDFreesTheAddressOfItsRail(t *testing.T) {
	t.Parallel()
	b := newIPAMSpy(t, railsInOrder)
	before := b.node.State()
	call, plan := b.call(b.config(map[string]any{"device": nil, "rail": 2, "ipam": map[string]any{"type": "whereabouts", "range": "10.${rail}.0.0/16"}}))
	b.opened.Fault = func(step string) error {
		if step == "addresses" {
			panic("killed") // the record stays, as with kill -9
		}
		return nil
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = b.opened.Add(context.Background(), call, plan)
	}()
	records := b.records()
	if len(records) != 1 || records[0].Phase != ledger.Lending {
		t.Fatalf("records: %+v", records)
	}
	b.told("ADD")
	again := b.open()
	again.Log, again.Sys = b.opened.Log, b.opened.Sys
	if err := again.Del(context.Background(), call, plan); err != nil {
		t.Errorf("DEL: %v", err)
	}
	b.wants("DEL", "10.2.0.0/16")
	b.untouched(before)
}
