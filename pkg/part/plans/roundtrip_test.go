package plans_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
)

func codeOf(err error) uint {
	var said *types.Error
	if errors.As(err, &said) {
		return said.Code
	}
	return cnierr.Code(err)
}

func TestNICComesHomeAsItWas(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*bench){
		"bare":      func(*bench) {},
		"furnished": (*bench).furnish,
		"down":      func(b *bench) { b.node.IP("link", "set", nicName, "down") },
		"down with addresses": func(b *bench) {
			b.furnish()
			b.node.IP("link", "set", nicName, "down")
			b.node.IP("addr", "add", "10.77.0.1/24", "dev", nicName)
		},
		"own broadcast address and token": func(b *bench) {
			b.node.IP("link", "set", nicName, "broadcast", "02:00:5e:00:00:01")
			b.node.Sysctl("ipv6/conf/"+nicName+"/accept_ra", "2")
			b.node.IP("token", "set", "::7", "dev", nicName)
		},
		"debugged": func(b *bench) {
			b.node.SetFlags(nicName, math.MaxUint32, unix.IFF_DEBUG|unix.IFF_NOTRAILERS|unix.IFF_PORTSEL|unix.IFF_AUTOMEDIA|unix.IFF_DYNAMIC)
		},
		"promiscuous, no arp": func(b *bench) { b.node.IP("link", "set", nicName, "promisc", "on", "arp", "off", "group", "7") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			prepare(b)
			before, attributes := b.node.State(), b.node.Attributes(nicName)
			config := b.config(nil)
			b.node.MustRun(b.call("ADD", config))
			if strings.Contains(b.node.State(), nicName+"\"") {
				t.Error("the NIC is still on the host")
			}
			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
			b.sameAttributes(attributes)
			if note := b.returned(); note != "" {
				t.Errorf("it is noted: %s", note)
			}
		})
	}
}

func TestNICComesHomeAsItWasWhateverThePodDidToIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	before, attributes := b.node.State(), b.node.Attributes(nicName)
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))

	b.pod.IP("link", "set", "net1", "down")
	b.pod.IP("link", "set", "net1", "name", "mine", "mtu", "1280", "alias", "my own", "promisc", "on", "txqueuelen", "5", "group", "9")
	b.pod.IP("link", "set", "mine", "address", "02:aa:bb:cc:dd:ee", "broadcast", "02:66:66:66:66:66")
	b.pod.SetFlags("mine", math.MaxUint32, unix.IFF_DEBUG|unix.IFF_NOTRAILERS|unix.IFF_PORTSEL|unix.IFF_AUTOMEDIA|unix.IFF_DYNAMIC)
	b.pod.IP("link", "property", "add", "dev", "mine", "altname", "lo2")
	b.pod.IP("link", "property", "del", "dev", "mine", "altname", "enp4s0np0")
	b.pod.IP("addr", "add", "1.2.3.4/8", "dev", "mine")
	b.pod.Sysctl("ipv4/conf/mine/arp_announce", "2")

	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
	b.sameAttributes(attributes)
}

// An altname that a pod gives a NIC may be the name of another link of the
// host: it must not prevent the NIC's return.
func TestPodCannotKeepANICByAnAltname(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.NIC("uplink", b.wire)
	before := b.node.State()
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	b.pod.IP("link", "property", "add", "dev", "net1", "altname", "uplink")
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

func TestPodGetsTheNICUpWithItsMTUAltnameAndMAC(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host, err := link.ByName(b.node.Netns, nicName)
	if err != nil {
		t.Fatal(err)
	}
	out := b.node.MustRun(b.call("ADD", b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")})))
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := link.ByName(b.pod.Netns, "net1")
	if err != nil {
		t.Fatal(err)
	}
	if !l.IsUp() || l.MTU != 9000 || l.MAC.String() != host.MAC.String() || !slices.Contains(l.AltNames, "enp4s0np0") {
		t.Errorf("interface in the pod: %+v", l)
	}
	if text := b.pod.IP("-4", "addr", "show", "net1"); !strings.Contains(text, "inet 172.31.1.1/24 brd 172.31.1.255 scope global net1") {
		t.Errorf("address in the pod: %s", text)
	}
	if got := result.Interfaces[0]; got.Name != "net1" || got.Mac != host.MAC.String() || got.Mtu != 9000 || got.Sandbox != "/run/netns/"+b.pod.Name {
		t.Errorf("result: %s", out)
	}
	for _, s := range []string{"ipv4/conf/arp_notify", "ipv6/conf/ndisc_notify"} {
		if settings, err := sysctl.Read(b.pod.Netns, "net1"); err != nil || settings[s] != "1" {
			t.Errorf("%s is %q, %v", s, settings[s], err)
		}
	}
}

func TestMTUOfTheConfigHoldsInThePodOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	config := b.config(map[string]any{"mtu": 4200})
	out := b.node.MustRun(b.call("ADD", config))
	if !strings.Contains(string(out), `"mtu": 4200`) {
		t.Errorf("result: %s", out)
	}
	if l, err := link.ByName(b.pod.Netns, "net1"); err != nil || l.MTU != 4200 {
		t.Errorf("MTU in the pod: %+v, %v", l, err)
	}
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

func TestUseInterfaceNetworkCarriesTheHostsConfigurationBothWays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	b.node.IP("rule", "add", "from", "10.9.0.1", "table", "101")
	before := b.node.State()
	config := b.config(map[string]any{"useInterfaceNetwork": true, "cniVersion": "1.0.0"})
	out := b.node.MustRun(b.call("ADD", config))

	pod := b.pod.IP("addr", "show", "net1") + b.pod.IP("route", "show", "table", "all") + b.pod.IP("rule") + b.pod.IP("-6", "route")
	for _, want := range []string{
		"inet 10.9.0.1/24", "inet 10.9.0.7/24", "inet6 fd00:9::1/64", "10.20.0.0/16 via 10.9.0.254 dev net1",
		"default via 10.9.0.254 dev net1 table 101", "fd00:20::/48 via fd00:9::fe dev net1", "from 10.9.0.1 lookup 101",
	} {
		if !strings.Contains(pod, want) {
			t.Errorf("the pod lacks %q:\n%s", want, pod)
		}
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatal(err)
	}
	if len(result.IPs) != 4 || len(result.Routes) != 3 {
		t.Errorf("the result has %d addresses and %d routes, want 4 and 3: %s", len(result.IPs), len(result.Routes), out)
	}
	// CHECK must accept ADD's result.
	b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// withPrevResult returns the configuration in the form in which a runtime
// passes it after ADD.
func (b *bench) withPrevResult(config string, result []byte) string {
	b.t.Helper()
	var conf map[string]any
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		b.t.Fatal(err)
	}
	return b.configOf(conf, map[string]any{"prevResult": json.RawMessage(result)})
}

func TestNICThatCannotBeLentIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*bench)
		more    map[string]any
		code    uint
		text    string
	}{
		"uplink": {
			func(b *bench) {
				b.node.IP("addr", "add", "10.9.0.1/24", "dev", nicName)
				b.node.IP("route", "add", "default", "via", "10.9.0.254")
			}, nil, cnierr.NICProtected, `"allow": ["uplink"]`,
		},
		"bridge member": {
			func(b *bench) {
				b.node.IP("link", "add", "br0", "type", "bridge")
				b.node.IP("link", "set", nicName, "master", "br0")
			}, nil, cnierr.NICProtected, "it belongs to the bridge br0",
		},
		"with a macvlan": {
			func(b *bench) { b.node.IP("link", "add", "mv0", "link", nicName, "type", "macvlan", "mode", "bridge") },
			nil, cnierr.NICProtected, "mv0 (macvlan)",
		},
		"loopback":         {func(*bench) {}, map[string]any{"device": "lo"}, cnierr.NICProtected, "loopback"},
		"missing":          {func(*bench) {}, map[string]any{"device": "ens99"}, cnierr.NICNotFound, `device "ens99"`},
		"no selector":      {func(*bench) {}, map[string]any{"device": nil}, cnierr.InvalidConfig, `specify either "device", "hwaddr", "kernelpath" or "pciBusID"`},
		"unknown override": {func(*bench) {}, map[string]any{"allow": []string{"everything"}}, cnierr.InvalidConfig, `"everything"`},
		"unknown id":       {func(*bench) {}, map[string]any{"device": nil, "deviceID": "0"}, cnierr.NICNotFound, `device id "0"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c.prepare(b)
			before := b.node.State()
			_, err := b.node.Run(b.call("ADD", b.config(c.more)))
			fails(t, err, c.code, c.text)
			b.untouched(before)
		})
	}
}

func TestOverrideLendsAGuardedNICAndBringsItHome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("link", "add", "br0", "type", "bridge")
	b.node.IP("link", "set", nicName, "master", "br0")
	before := b.node.State()
	config := b.config(map[string]any{"allow": []string{"member"}})
	b.node.MustRun(b.call("ADD", config))
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// Multus injects the IDs of a shared device plugin ("0", "1", …) in addition to a static
// selector. These IDs must neither override the selector nor make it invalid.
func TestInjectedIDThatIsNoDeviceDoesNotDisturbASelector(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.config(map[string]any{
		"deviceID": "0", "pciBusID": "0", "runtimeConfig": map[string]any{"deviceID": "3", "CNIDeviceInfoFile": "/var/run/k8s.cni.cncf.io/devinfo/cni/test-of-rail-cni"},
	})
	b.node.MustRun(b.call("ADD", config))
	if _, err := link.ByName(b.pod.Netns, "net1"); err != nil {
		t.Error(err)
	}
	b.node.MustRun(b.call("DEL", config))
}

func TestAltnameAndMACSelect(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, err := link.ByName(b.node.Netns, nicName)
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []map[string]any{
		{"device": "enp4s0np0"}, {"device": nil, "hwaddr": strings.ToUpper(l.MAC.String())}, {"device": nil, "HWADDR": l.MAC.String()},
	} {
		before := b.node.State()
		config := b.config(more)
		b.node.MustRun(b.call("ADD", config))
		// Lent, it is still found by the same selector, with its holder.
		other := b.call("ADD", config)
		other.ContainerID, other.Netns = "c2", "/run/netns/"+b.wire.Name
		_, err := b.node.Run(other)
		fails(t, err, cnierr.NICLent, "container c1, interface net1")
		b.node.MustRun(b.call("DEL", config))
		b.untouched(before)
	}
}

func TestRecordIsWrittenBeforeTheFirstChange(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	// The IPAM plugin runs before the NIC moves; this one checks the ledger.
	spy := "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] && cat \"" + b.state + "\"/attachments/*.json >\"" + b.state + "/seen\"\necho '{\"code\":11,\"msg\":\"seen\"}'\nexit 1\n"
	dir := t.TempDir()
	writeExecutable(t, dir+"/spy", spy)
	c := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
	c.Path = testnet.Bin(t) + ":" + dir
	_, err := b.node.Run(c)
	fails(t, err, cnierr.TryAgain, "seen")
	r, err := ledger.Decode(readFile(t, b.state+"/seen"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Phase != ledger.Lending || r.Loan.Name != nicName || !r.Netns.Equal(b.pod.ID) || !r.HostNetns.Equal(b.node.ID) {
		t.Errorf("record: %+v", r)
	}
	_ = before // the spy also fails DEL, so the record must stay until it succeeds
	if records := b.records(); len(records) != 1 || records[0].Phase != ledger.Freeing {
		t.Errorf("records: %+v", records)
	}
	writeExecutable(t, dir+"/spy", "#!/bin/sh\nexit 0\n")
	c.Verb = "DEL"
	b.node.MustRun(c)
	b.untouched(before)
}
