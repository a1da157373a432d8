//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// functionNode is a node with virtual functions.
type functionNode struct {
	*node
	pci []string // of the virtual functions, by number
	pf  string   // the interface of their physical function
}

const (
	functionsOf = "enp1s0np0" // the physical function
	functionDir = "/sys/bus/pci/devices/0000:01:00.0/"
)

// newFunctions returns a node with virtual functions, of which the second one has settings of the
// administrator.
func newFunctions(t *testing.T, count int) *functionNode {
	t.Helper()
	n := &functionNode{node: newRDMANode(t, rdma.Shared, ""), pf: functionsOf}
	n.makeFunctions(count)
	n.Batch(nil, "link set "+functionsOf+" up", "link set "+functionsOf+" vf 1 mac 02:00:00:00:00:77 vlan 7 qos 3 rate 500 spoofchk on trust off")
	n.IP("link", "set", "enp1s0v1", "address", "02:00:00:00:00:77")
	for i := range count {
		n.pci = append(n.pci, filepath.Base(readLink(t, fmt.Sprintf("%svirtfn%d", functionDir, i))))
	}
	return n
}

// makeFunctions makes virtual functions, until the test ends.
func (n *node) makeFunctions(count int) {
	n.t.Helper()
	write(n.t, functionDir+"sriov_numvfs", strconv.Itoa(count))
	n.t.Cleanup(func() { write(n.t, functionDir+"sriov_numvfs", "0") })
}

// bind binds a virtual function to a driver, also to its own anew.
func (n *functionNode) bind(number int, driver string) {
	n.t.Helper()
	dir := "/sys/bus/pci/devices/" + n.pci[number]
	write(n.t, dir+"/driver/unbind", n.pci[number])
	write(n.t, dir+"/driver_override", driver)
	write(n.t, "/sys/bus/pci/drivers_probe", n.pci[number])
	if now := filepath.Base(readLink(n.t, dir+"/driver")); now != driver {
		n.t.Fatalf("virtual function %d has the driver %s", number, now)
	}
}

// table returns what the physical function has of its virtual ones, a line for each.
func (n *functionNode) table() string {
	n.t.Helper()
	var lines []string
	for line := range strings.Lines(n.IP("-d", "link", "show", n.pf)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "vf ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// lend returns the call of sriov that lends a virtual function to the pod.
func (n *functionNode) lend(p *pod, verb string, number int, more map[string]any) testnet.Call {
	conf := map[string]any{"type": "sriov", "name": "functions", "device": nil, "deviceID": n.pci[number]}
	maps.Copy(conf, more)
	call := p.call(verb, "net1", n.config(0, conf))
	call.Plugin = "sriov"
	return call
}

// knob has a parameter of the driver while do runs, and 0 afterwards.
func knob(t *testing.T, name, value string, do func()) {
	t.Helper()
	file := "/sys/module/fakerdma/parameters/" + name
	write(t, file, value)
	defer write(t, file, "0")
	do()
}

// counted sets a counter of the driver to 0, and returns what reads it.
func counted(t *testing.T, name string) (count func() string) {
	t.Helper()
	file := "/sys/module/fakerdma/parameters/" + name
	write(t, file, "0")
	return func() string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
}

// endings are the ways in which an attachment of the second virtual function ends. lend attaches it to the next pod, with
// more keys, and next looks at what that pod has.
func endings(lend func(n *functionNode, p *pod, verb string, number int, more map[string]any) testnet.Call, more map[string]any,
	next func(n *functionNode, p *pod),
) map[string]func(n *functionNode, p *pod, call testnet.Call) {
	return map[string]func(n *functionNode, p *pod, call testnet.Call){
		"DEL":           func(n *functionNode, _ *pod, call testnet.Call) { n.MustRun(call.With("DEL")) },
		"dead pod, DEL": func(n *functionNode, p *pod, call testnet.Call) { p.Kill(); n.MustRun(call.With("DEL")) },
		"dead pod, gc":  func(n *functionNode, p *pod, _ testnet.Call) { p.Kill(); n.gc() },
		"dead pod, the next pod's ADD": func(n *functionNode, p *pod, call testnet.Call) {
			p.Kill()
			other := n.pod("next")
			add := lend(n, other, "ADD", 1, more)
			n.MustRun(add)
			next(n, other)
			late := n.table()
			n.MustRun(call.With("DEL")) // too late: it must not touch what the next pod has
			if now := n.table(); now != late {
				n.t.Errorf("after a late DEL:\n%s\nbefore:\n%s", now, late)
			}
			n.MustRun(add.With("DEL"))
		},
	}
}

// allSettings are all that a network may want, each another than the administrator's.
var allSettings = map[string]any{
	"vlan": 100, "vlanQoS": 5, "vlanProto": "802.1ad", "mac": "02:AB:CD:00:00:01", "spoofchk": "off", "trust": "on",
	"link_state": "enable", "min_tx_rate": 10, "max_tx_rate": 2000,
}

// TestSettingsOfAVirtualFunctionComeHome: the pod has the network's, and what it does with a trusted function ends with it.
func TestSettingsOfAVirtualFunctionComeHome(t *testing.T) {
	n := newFunctions(t, 3)
	before := n.State() // with the physical function's table
	ends := endings((*functionNode).lend, map[string]any{"vlan": 0}, func(n *functionNode, _ *pod) {
		if now := n.table(); !regexp.MustCompile(`vf 1 .*02:00:00:00:00:77.* spoof checking on, .*trust off`).MatchString(now) || strings.Contains(now, "vlan 7") {
			n.t.Errorf("the next pod has\n%s", now)
		}
	})
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			n := &functionNode{n.in(t), n.pci, n.pf}
			sets, p := counted(t, "vf_sets"), n.pod("pod")
			call := n.lend(p, "ADD", 1, allSettings)
			result := n.MustRun(call)
			if got := sets(); got != "6" {
				t.Errorf("ADD made %s settings, want 6", got)
			}
			const want = `vf 1 .*02:ab:cd:00:00:01.* vlan 100, qos 5, vlan protocol 802.1ad, ` +
				`tx rate 2000 \(Mbps\), max_tx_rate 2000Mbps, min_tx_rate 10Mbps, spoof checking off, link-state enable, trust on`
			if now := n.table(); !regexp.MustCompile(want).MatchString(now) {
				t.Errorf("the functions are\n%s\nwant\n%s", now, want)
			}
			n.showsSettings()
			l, err := link.ByName(p.Netns.Netns, "net1")
			if err != nil || l.MAC.String() != "02:ab:cd:00:00:01" || !strings.Contains(string(result), "02:ab:cd:00:00:01") {
				t.Errorf("net1 is %+v, %v, the result %s", l, err, result)
			}
			more := maps.Clone(allSettings)
			more["prevResult"] = json.RawMessage(result)
			n.MustRun(n.lend(p, "CHECK", 1, more))
			// As it is trusted, the pod may have another MAC, all packets, and VLANs of its own.
			p.Batch(nil, "link set net1 down", "link set net1 address 02:00:00:00:66:66", "link set net1 up promisc on allmulticast on",
				"link add link net1 name stray type vlan id 66", "link set stray up")
			end(n, p, call)
			n.untouched(before)
		})
	}
}

// showsSettings checks that railctl shows allSettings of the pod's function.
func (n *functionNode) showsSettings() {
	n.t.Helper()
	out, errOut, code := n.railctl("show", "-o", "json")
	var list []inventory.Attachment
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || len(list) != 1 || list[0].VF == nil {
		n.t.Fatalf("%v, exit code %d, %s\n%s", err, code, errOut, out)
	}
	want := map[string]string{
		"VLAN": "100 qos 5 802.1ad", "MAC": "02:ab:cd:00:00:01", "spoof check": "off", "trust": "on", "link state": "enable",
		"rate": "min 10, max 2000 Mbit/s",
	}
	if v := list[0].VF; v.Number != 1 || v.PF != filepath.Base(functionDir) || !maps.Equal(v.Settings, want) {
		n.t.Errorf("railctl shows %+v", v)
	}
}

// TestSRIOVReadsAndSetsNoMoreThanItNeeds counts what the driver is asked. Each question is for all functions.
func TestSRIOVReadsAndSetsNoMoreThanItNeeds(t *testing.T) {
	const functions = 3
	n := newFunctions(t, functions)
	before := n.State() // with the physical function's table
	for name, c := range map[string]struct {
		number      int
		settings    map[string]any
		sets, reads int // of ADD
		back        int // sets of DEL
	}{
		"nothing":                          {0, nil, 0, 0, 0},
		"SriovNetwork's, which is so":      {0, map[string]any{"vlan": 0}, 0, 1, 0},
		"SriovNetwork's, another VLAN":     {1, map[string]any{"vlan": 0}, 1, 2, 1},
		"the administrator's own":          {1, map[string]any{"mac": "02:00:00:00:00:77", "vlan": 7, "vlanQoS": 3, "trust": "off", "link_state": "auto"}, 0, 1, 0},
		"all":                              {1, allSettings, 6, 2, 6},
		"one of two rates keeps the other": {1, map[string]any{"min_tx_rate": 100}, 1, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := &functionNode{n.in(t), n.pci, n.pf}
			call := n.lend(n.pod("pod"), "ADD", c.number, c.settings)
			sets, reads := counted(t, "vf_sets"), counted(t, "vf_config_calls")
			n.MustRun(call)
			if got := [2]string{sets(), reads()}; got != [2]string{strconv.Itoa(c.sets), strconv.Itoa(c.reads * functions)} {
				t.Errorf("ADD made %s settings and %s questions, want %d and %d for each of %d functions", got[0], got[1], c.sets, c.reads, functions)
			}
			if name == "one of two rates keeps the other" && !strings.Contains(n.table(), "max_tx_rate 500Mbps, min_tx_rate 100Mbps") {
				t.Errorf("the functions are\n%s", n.table())
			}
			sets, reads = counted(t, "vf_sets"), counted(t, "vf_config_calls")
			n.MustRun(call.With("DEL"))
			if got := [2]string{sets(), reads()}; got != [2]string{strconv.Itoa(c.back), "0"} {
				t.Errorf("DEL made %s settings and %s questions, want %d and none", got[0], got[1], c.back)
			}
			n.untouched(before)
		})
	}
}

// TestDoctorFindsSettingsThatNoRecordHolds: it asks the driver once, and rail-agent's runs do not ask.
func TestDoctorFindsSettingsThatNoRecordHolds(t *testing.T) {
	n := newFunctions(t, 4)
	s := &railNode{node: n.node}
	const rule = "VF-STALE"
	finds := func(want string) {
		t.Helper()
		wants := map[string]string{rule: want}
		if want == "" {
			wants = nil
		}
		found, missing := s.judged(wants, "--only", rule)
		s.compare(found, missing, wants)
		if len(found[rule]) > 1 {
			t.Errorf("more is found: %q", found[rule])
		}
	}
	function := "NIC " + functionsOf + ": virtual function 1 (" + n.pci[1] + ") has VLAN 7 qos 3 "
	asked := counted(t, "vf_config_calls")
	n.collected(50 * time.Millisecond)
	if got := asked(); got != "0" {
		t.Errorf("facts for rail-agent ask %s times", got)
	}
	finds(function + "(3 of the 3 other free ones: no VLAN)")
	if got := asked(); got != "4" {
		t.Errorf("doctor asked %s times for 4 functions", got)
	}
	call := n.lend(n.pod("pod"), "ADD", 2, map[string]any{"vlan": 9, "trust": "on"})
	n.MustRun(call)
	finds(function + "(2 of the 2 other free ones: no VLAN)")
	n.IP("link", "set", functionsOf, "vf", "1", "vlan", "0")
	finds("")
	n.MustRun(call.With("DEL"))
	finds("")
}

// TestVirtualFunctionThatTakesTheMACOfItsPhysicalFunction: with some drivers also the permanent MAC changes, by which other
// NICs are recognized.
func TestVirtualFunctionThatTakesTheMACOfItsPhysicalFunction(t *testing.T) {
	n := newFunctions(t, 2)
	const parameter = "/sys/module/fakerdma/parameters/vf_resets"
	write(t, parameter, "1")
	t.Cleanup(func() { write(t, parameter, "0") })
	n.IP("link", "set", functionsOf, "vf", "1", "mac", "02:00:00:00:00:77") // its permanent MAC, too
	before := n.State()
	for name, end := range map[string]func(p *pod, call testnet.Call){
		"DEL":          func(_ *pod, call testnet.Call) { n.MustRun(call.With("DEL")) },
		"dead pod, gc": func(p *pod, _ testnet.Call) { p.Kill(); n.gc() },
		"dead pod, the next pod's ADD": func(p *pod, _ testnet.Call) {
			p.Kill()
			next := n.lend(n.pod("next"), "ADD", 1, map[string]any{"vlan": 9})
			n.MustRun(next)
			n.MustRun(next.With("DEL"))
		},
	} {
		p := n.pod("pod")
		call := n.lend(p, "ADD", 1, allSettings)
		n.MustRun(call)
		if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || l.PermMAC.String() != "02:ab:cd:00:00:01" {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		_, err := n.Run(n.lend(n.pod("thief"), "ADD", 1, allSettings))
		refused(t, err, cnierr.NICLent, "is lent to")
		end(p, call)
		n.untouched(before)
	}
}

// TestSriovNetworksOfTheOperator: as sriov-network-operator writes them, with the function that a device plugin chose.
func TestSriovNetworksOfTheOperator(t *testing.T) {
	n := newFunctions(t, 2)
	before := n.State()
	for kind, want := range map[string]string{"SriovNetwork": "spoof checking on", "SriovNetwork_with_all": "vlan 100, qos 5"} {
		text, err := examples.Rendered(kind)
		if err != nil {
			t.Fatal(err)
		}
		var conf map[string]any
		if err := json.Unmarshal([]byte(text), &conf); err != nil {
			t.Fatal(err)
		}
		p := n.pod("pod")
		call := n.lend(p, "ADD", 1, conf)
		n.MustRun(call)
		if now := n.table(); !strings.Contains(now, want) || kind == "SriovNetwork" && strings.Contains(now, "vlan") {
			t.Errorf("%s: the functions are\n%s", kind, now)
		}
		n.MustRun(call.With("DEL"))
		n.untouched(before)
	}
}

// TestAttachmentsOfSRIOVCNIEnd: sriov-cni's module is refused by the registries, so the test leaves what its ADD leaves.
func TestAttachmentsOfSRIOVCNIEnd(t *testing.T) {
	n := newFunctions(t, 2)
	before := n.State()
	dir := "/var/lib/cni/sriov"
	for name, end := range map[string]func(n *functionNode, p *pod, call testnet.Call){
		"living pod": func(n *functionNode, _ *pod, call testnet.Call) { n.MustRun(call.With("DEL")) },
		"dead pod":   func(n *functionNode, p *pod, call testnet.Call) { p.Kill(); n.MustRun(call.With("DEL")) },
	} {
		t.Run(name, func(t *testing.T) {
			n := &functionNode{n.in(t), n.pci, n.pf}
			p := n.pod("theirs")
			call := n.lend(p, "ADD", 1, allSettings)
			n.Batch(nil, "link set "+functionsOf+" vf 1 mac 02:ab:cd:00:00:01 vlan 100 qos 5 spoofchk off trust on state enable rate 2000",
				"link set enp1s0v1 address 02:ab:cd:00:00:01", "link set enp1s0v1 netns "+p.Name+" name net1")
			p.IP("link", "set", "net1", "mtu", "1400", "up")
			if err := os.MkdirAll(filepath.Join(dir, "pci"), 0o700); err != nil {
				t.Fatal(err)
			}
			cached := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "functions", "type": "sriov", "OrigVfState": {"HostIFName": "enp1s0v1", "SpoofChk": true,
				"Trust": false, "AdminMAC": "02:00:00:00:00:77", "EffectiveMAC": "02:00:00:00:00:77", "Vlan": 7, "VlanQoS": 3, "VlanProto": 33024,
				"MinTxRate": 0, "MaxTxRate": 500, "LinkState": 0, "MTU": 1500}, "DPDKMode": false, "Master": %q, "MAC": "02:ab:cd:00:00:01", "vlan": 100, "vlanQoS": 5,
				"deviceID": %q, "VFID": 1, "ContIFNames": "net1", "min_tx_rate": 10, "max_tx_rate": 2000, "spoofchk": "off", "trust": "on",
				"link_state": "enable"}`, functionsOf, n.pci[1])
			files := []string{filepath.Join(dir, "theirs-net1"), filepath.Join(dir, "pci", n.pci[1])}
			write(t, files[0], cached)
			write(t, files[1], "/run/netns/"+p.Name)
			end(n, p, call)
			n.untouched(before)
			for _, file := range files {
				if _, err := os.Stat(file); err == nil {
					t.Errorf("%s is left", file)
				}
			}
		})
	}
}

// TestSettingThatADriverLacks: igb has no link state, for example.
func TestSettingThatADriverLacks(t *testing.T) {
	n := newFunctions(t, 2)
	before := n.State()                                                            // with the physical function's table
	for bits, setting := range map[string]string{"32": "link state", "2": "MAC"} { // IFLA_VF_LINK_STATE is 5, IFLA_VF_MAC is 1
		knob(t, "vf_lacks", bits, func() {
			_, err := n.Run(n.lend(n.pod("pod"), "ADD", 1, allSettings))
			refused(t, err, cnierr.NotAvailable, "virtual function 1 of "+functionsOf, setting, "not every driver")
			n.untouched(before)
		})
	}
	for bits, setting := range map[string]string{"4096": "VLAN", "2": "MAC"} { // IFLA_VF_VLAN_LIST is 12
		knob(t, "vf_ignores", bits, func() {
			_, err := n.Run(n.lend(n.pod("pod"), "ADD", 1, allSettings))
			refused(t, err, cnierr.NotAvailable, setting+": the driver reports another value than the one that was set")
			n.untouched(before)
		})
	}
	// What the function is anyway is no error.
	call := n.lend(n.pod("pod2"), "ADD", 1, map[string]any{"link_state": "auto", "trust": "on"})
	knob(t, "vf_lacks", "32", func() {
		n.MustRun(call)
		n.MustRun(call.With("DEL"))
	})
	n.untouched(before)

	// Its own MAC could not be restored.
	n.IP("link", "set", functionsOf, "vf", "0", "mac", "02:00:00:00:00:55")
	before = n.State()
	_, err := n.Run(n.lend(n.pod("pod3"), "ADD", 0, map[string]any{"mac": "02:00:00:00:00:56"}))
	refused(t, err, cnierr.NotAvailable, "has given it 02:00:00:00:00:55")
	n.untouched(before)

	for config, text := range map[string]string{
		n.config(0, map[string]any{"type": "sriov", "vlan": 5}):    "is not a virtual function",
		n.config(0, map[string]any{"type": "sriov"}):               "is not a virtual function",
		n.config(0, map[string]any{"type": "sriov", "vlan": 5000}): `"vlan" is 5000`,
	} {
		other := n.pod("other").call("ADD", "net1", config)
		other.Plugin = "sriov"
		_, err := n.Run(other)
		refused(t, err, cnierr.InvalidConfig, text)
	}
	n.untouched(before)
}

// TestPodsOfVirtualFunctionsAtOnce: each pod has its own VLAN.
func TestPodsOfVirtualFunctionsAtOnce(t *testing.T) {
	count := 10
	n := newFunctions(t, count)
	before := n.State() // with the physical function's table
	calls := make([]testnet.Call, count)
	for i := range calls {
		calls[i] = n.lend(n.pod(fmt.Sprint("pod", i)), "ADD", i, map[string]any{"vlan": 100 + i, "trust": "on"})
	}
	for _, verb := range []string{"ADD", "DEL"} {
		errs := make([]error, count)
		var wait sync.WaitGroup
		for i, call := range calls {
			wait.Go(func() { _, errs[i] = n.Run(call.With(verb)) })
		}
		wait.Wait()
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			t.Fatalf("%s of pod %d: %v", verb, i, errs[i])
		}
		if verb == "ADD" {
			for i := range count {
				if !regexp.MustCompile(fmt.Sprintf(`vf %d .* vlan %d, .*trust on`, i, 100+i)).MatchString(n.table()) {
					t.Errorf("function %d:\n%s", i, n.table())
				}
			}
		}
	}
	n.untouched(before)
}

// TestPhysicalFunctionWithoutAnInterface: only its virtual functions with settings need one.
func TestPhysicalFunctionWithoutAnInterface(t *testing.T) {
	n := newFunctions(t, 2)
	elsewhere := n.pod("elsewhere")
	n.IP("link", "set", n.pf, "netns", elsewhere.Name)
	before := n.State()
	_, err := n.Run(n.lend(n.pod("pod"), "ADD", 1, map[string]any{"vlan": 100}))
	refused(t, err, cnierr.NotAvailable, "0000:01:00.0 has no interface on the host")
	n.untouched(before)
	call := n.lend(n.pod("pod2"), "ADD", 1, nil)
	n.MustRun(call)
	n.MustRun(call.With("DEL"))
	n.untouched(before)
	elsewhere.IP("link", "set", n.pf, "netns", n.Name)
}

// TestDamagedFilesOfPeers: nothing is known of such an attachment, so its DEL succeeds and changes nothing.
func TestDamagedFilesOfPeers(t *testing.T) {
	n := newFunctions(t, 2)
	before := n.State()
	for plugin, dir := range map[string]string{"sriov": "/var/lib/cni/sriov", "ib-sriov": "/var/lib/cni/ib-sriov"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{
			"", "{", "null", "[]", `{"deviceID": 7}`, `{"deviceID": "../../x"}`, `{"deviceID": "0000:77:00.0"}`, `{"deviceID": "net1", "vlan": "x"}`,
			fmt.Sprintf(`{"deviceID": %q, "link_state": 5}`, n.pci[1]), fmt.Sprintf(`{"deviceID": %q, "MAC": 5, "HostIFGUID": 5}`, n.pci[1]),
		} {
			write(t, filepath.Join(dir, "theirs-net1"), text)
			call := n.lend(n.pod("theirs"), "DEL", 1, map[string]any{"type": plugin})
			call.Plugin = plugin
			n.MustRun(call)
			n.untouched(before)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
