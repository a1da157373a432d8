package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

const (
	masters  = 2                // of the NICs, the last ones, which carry macvlans
	patience = 60 * time.Second // in which a node must become clean
	hangs    = 90 * time.Second // a call that takes longer hangs
)

// hardware describes the NICs of a node: veths on this machine, PCI functions
// in the rig.
type hardware struct {
	rdma  bool           // they are functions of PCI, with RDMA devices
	slow  time.Duration  // factor of slowness compared with this machine
	keys  map[string]any // of host-device's configuration
	name  func(nic int) string
	cable func(nic int) string // the name of the other end, on its wire
	plug  func(nic int)        // makes the NIC as it is on the host, at first and whenever it is gone
	pci   []string             // the PCI addresses of the NICs, none of veths
	gone  func(nic int) bool   // reports whether it was destroyed, with its pod
	pull  func(nic int)        // destroys it, wherever it is
	more  func() string        // describes further state that must stay
	// rest describes what else of a NIC must be as it was. name is the NIC's in n.
	rest func(n *testnet.Netns, name string, nic int) string
}

// lab is the node under attack. Its netns is that of this process; each NIC has
// a wire of its own, with a station at its end.
type lab struct {
	hardware
	*beside
	t     *testing.T
	plain bool
	state string
	node  *testnet.Netns
	wires [modelNICs]*testnet.Netns
	whole string            // the node's state with all NICs on the host
	home  [modelNICs]string // the dump of each NIC there
	lent  [modelNICs]string // and in a pod that changed nothing; for the masters, of a macvlan

	mu        sync.Mutex
	free      []int // NICs on the host that are not lent, last returned last
	addresses map[string]ledger.Key
	given     map[string]gift              // by MAC
	ended     map[*testnet.Netns]time.Time // when the netns of a pod ended
	destroyed [modelNICs]int               // how often the kernel destroyed each NIC, with its pod
	wrong     int
	done      map[string]int
	succeeded map[string]int    // attacks
	refused   map[string]string // and why some were impossible
	slowest   time.Duration
	last      []string // what was done

	resident      resident
	memory, files int   // the most that an agent had: KiB, open files
	lacked        error // why facts were missing, the last time
	// unattended: no other agent begins. Attachments of dead pods end by DEL alone.
	unattended atomic.Bool
}

func newLab(t *testing.T, state string, plain bool, of func(l *lab) hardware) *lab {
	l := &lab{
		t: t, plain: plain, state: filepath.Join(state, "rail-cni"), node: testnet.Here(t), addresses: map[string]ledger.Key{}, given: map[string]gift{}, ended: map[*testnet.Netns]time.Time{},
		done: map[string]int{}, succeeded: map[string]int{}, refused: map[string]string{},
	}
	// No generated addresses, so that the test need not wait for them.
	l.node.Sysctl("ipv6/conf/default/addr_gen_mode", "1")
	l.hardware = of(l)
	// Not the node file of all tests: another program may put its own there.
	nodeFile := filepath.Join(state, "node.yaml")
	l.startBeside()
	if err := os.WriteFile(nodeFile, []byte(l.nodeFile()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(nodefile.PathEnv, nodeFile)
	for nic := range modelNICs {
		l.wires[nic] = testnet.NewNetns(t, "wire")
		l.plug(nic)
		card, err := link.ByName(l.node.Netns, l.name(nic))
		if err != nil {
			t.Fatal(err)
		}
		l.given[card.MAC.String()] = gift{nic: nic}
	}
	l.whole = l.node.State() + l.more()
	for nic := range modelNICs {
		l.home[nic] = l.atHome(nic)
	}
	pod := l.newPod()
	for nic := range modelNICs {
		a := l.newAttachment(fmt.Sprint("first-", nic), "net1", nic)
		a.pod = pod
		if err := l.add(a); err != nil {
			t.Fatal(err)
		}
		l.lent[nic] = l.calm(a.dump)
		if err := l.del(a, a.path()); err != nil {
			t.Fatal(err)
		}
		l.returned(a, nil)
	}
	if l.done[reopened] > 0 {
		t.Fatal("a NIC was returned without default GIDs, and nobody attacked it")
	}
	pod.Kill()
	l.settleIn()
	l.watch()
	return l
}

// long returns how long something may take that takes here on this machine.
func (l *lab) long(here time.Duration) time.Duration { return here * l.slow }

// calm returns the result of read as soon as it stays the same for a while: the
// kernel reports some changes late (linkwatch).
func (l *lab) calm(read func() string) string {
	before, since := read(), time.Now()
	for deadline := since.Add(l.long(settleTime)); time.Since(since) < l.long(50*time.Millisecond) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		if now := read(); now != before {
			before, since = now, time.Now()
		}
	}
	return before
}

// veths are NICs of the kind that the kernel destroys with their pod.
func veths(l *lab) hardware {
	h := hardware{
		slow: 1, name: modelNIC, cable: modelCable, more: func() string { return "" },
		rest: func(*testnet.Netns, string, int) string { return "" },
	}
	h.plug = l.makeNIC
	h.gone = func(nic int) bool { return !l.wires[nic].Has(h.cable(nic)) && !l.node.Has(h.name(nic)) }
	h.pull = func(nic int) { l.wires[nic].IP("link", "del", h.cable(nic)) }
	return h
}

// modelCable is the name of the other end of a NIC's cable.
func modelCable(nic int) string { return modelNIC(nic) + "-sw" }

// makeNIC makes a veth, always with the same MAC. As in [world.makeNIC] it gets
// its name and MAC last.
func (l *lab) makeNIC(nic int) {
	name := fmt.Sprint("new", nic)
	l.node.Batch(nil,
		fmt.Sprintf("link add %s mtu 9000 type veth peer name %s mtu 9000 netns %s", name, l.cable(nic), l.wires[nic].Name),
		fmt.Sprintf("link property add dev %s altname enp%ds0np0", name, nic))
	l.furnish(nic, name)
	l.node.Batch(nil, "link set "+name+" name "+l.name(nic), "link set "+l.name(nic)+" address "+modelMAC(nic))
	l.settled(nic)
}

// furnish configures a NIC, which is called name after these commands, and its
// cable as an administrator would.
func (l *lab) furnish(nic int, name string, first ...string) {
	l.node.Batch(nil, slices.Concat(first, []string{
		fmt.Sprintf("link set %s txqueuelen %d alias 'uplink %d' up", name, 1000+nic, nic),
		fmt.Sprintf("addr add 10.7.%d.1/24 brd + dev %s", nic, name),
	}, l.neighbors(nic, name, "add"))...)
	l.node.Sysctl("ipv4/conf/"+name+"/arp_ignore", "1")
	// Promiscuous, for the answers to requests from the zero address (see who).
	l.wires[nic].Batch(nil, "addr replace "+station+"/24 dev "+l.cable(nic), "link set "+l.cable(nic)+" mtu 9000 promisc on up")
}

// neighbors returns the commands of ip(8) that add or replace (verb) the NIC's neighbor and
// the route through it.
func (l *lab) neighbors(nic int, name, verb string) []string {
	return []string{
		fmt.Sprintf("neigh %s 10.7.%d.254 lladdr 02:00:00:00:00:fe nud permanent dev %s", verb, nic, name),
		fmt.Sprintf("route %s 10.20.%d.0/24 via 10.7.%d.254 metric 77", verb, nic, nic),
	}
}

// settled waits until the kernel has reported the NIC's carrier (linkwatch).
func (l *lab) settled(nic int) {
	for deadline := time.Now().Add(l.long(settleTime)); !strings.Contains(l.node.Dump(l.name(nic)), "sysfs operstate up"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Errorf("%s has no carrier", l.name(nic))
			return
		}
	}
}

// station is the address of the host at each wire's other end.
const station = "10.60.0.254"

// note records an action on a pod, or a change of a link.
func (l *lab) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = append(l.last, time.Now().Format(clock)+" "+fmt.Sprintf(format, args...))
	l.last = l.last[max(0, len(l.last)-10*remembered):]
}

// clock is the time format of notes.
const clock = "15:04:05.000"

// violation records an error, and the notes before it: by default those of all
// pods.
func (l *lab) violation(before []string, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrong++; before == nil {
		before = l.last
	}
	fmt.Printf("WRONG: %s\n", fmt.Sprintf(format, args...))
	if len(before) > 0 {
		fmt.Printf("  before:\n    %s\n", strings.Join(before, "\n    "))
	}
	if lines := kernelLog("gid"); len(lines) > 0 {
		fmt.Printf("  the kernel:\n    %s\n", strings.Join(lines, "\n    "))
	}
}

// kernelLog returns the last lines of the kernel's log with the word. It reports GIDs that
// find no room in a port's table, for example (__ib_cache_gid_add).
func kernelLog(word string) (lines []string) {
	const readAll, most = 3, 40 // SYSLOG_ACTION_READ_ALL of syslog(2)
	text := make([]byte, 1<<20)
	n, err := unix.Klogctl(readAll, text)
	if err != nil {
		return []string{"its log cannot be read: " + err.Error()}
	}
	for line := range strings.Lines(string(text[:n])) {
		if strings.Contains(line, word) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines[max(0, len(lines)-most):]
}

func (l *lab) violations() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wrong
}

func (l *lab) count(what string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[what] += n
}

// take returns a free NIC, most likely the one that was returned last, so that
// the next pod finds what the pod before it left on the NIC.
func (l *lab) take(r *rand.Rand) (nic int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) == 0 {
		return 0, false
	}
	at := len(l.free) - 1
	if r.IntN(4) == 0 {
		at = r.IntN(len(l.free))
	}
	nic = l.free[at]
	l.free = slices.Delete(l.free, at, at+1)
	return nic, true
}

// attachment is one attachment of a pod.
type attachment struct {
	ledger.Key
	l       *lab
	nic     int
	macvlan bool
	pod     *testnet.Netns
	addr    string
	mac     string
	result  []byte
	history func() []string // what its pod did
}

func (l *lab) newAttachment(id, ifName string, nic int) *attachment {
	return &attachment{Key: ledger.Key{ContainerID: id, IfName: ifName}, l: l, nic: nic, macvlan: nic >= modelNICs-masters, history: func() []string { return nil }}
}

func (l *lab) newPod() *testnet.Netns {
	pod := testnet.NewNetns(l.t, "pod")
	pod.Sysctl("ipv6/conf/default/addr_gen_mode", "1")
	return pod
}

func (a *attachment) path() string { return "/run/netns/" + a.pod.Name }

func (a *attachment) String() string {
	return fmt.Sprintf("%s (%s of %s)", a.Key, map[bool]string{true: "macvlan", false: "host-device"}[a.macvlan], a.l.name(a.nic))
}

// call runs the plugin for an attachment.
func (l *lab) call(verb string, a *attachment, netns string, keys map[string]any) ([]byte, error) {
	plugin := "host-device"
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "net-" + a.l.name(a.nic), "stateDir": l.state, "device": a.l.name(a.nic),
		"ipam": map[string]any{"type": "whereabouts", "range": "10.60.0.0/24", "range_end": "10.60.0.250", "store": "local"},
	}
	if a.macvlan {
		plugin, conf["master"] = "macvlan", a.l.name(a.nic)
		delete(conf, "device")
	}
	conf["type"] = plugin
	if !a.macvlan {
		maps.Copy(conf, l.keys)
	}
	maps.Copy(conf, keys)
	out, err := execute(testnet.Bin(l.t), plugin, modelCall{verb: verb, key: a.Key, fuse: l.long(hangs)}, netns, conf)
	l.note("%s of %s: %v", verb, a, err)
	l.count(verb, 1)
	if errors.Is(err, errKilled) {
		l.violation(a.history(), "%s of %s hung for %v", verb, a, l.long(hangs))
	}
	return out, err
}

// add runs an ADD with an address that is not in use.
func (l *lab) add(a *attachment) error {
	out, err := l.call("ADD", a, a.path(), nil)
	if err != nil {
		return err
	}
	a.result, a.addr, a.mac = out, address(out), hardwareAddress(out, a.IfName)
	l.mu.Lock()
	l.given[a.mac] = gift{a.nic, a.macvlan, a.addr, a.pod}
	other, taken := l.addresses[a.addr]
	l.addresses[a.addr] = a.Key
	l.mu.Unlock()
	if taken {
		l.violation(nil, "%s got %s, which %s has", a, a.addr, other)
	}
	return nil
}

// hardwareAddress returns the MAC of the pod's interface in a result.
func hardwareAddress(result []byte, ifName string) string {
	var r struct {
		Interfaces []struct{ Name, MAC, Sandbox string }
	}
	if json.Unmarshal(result, &r) != nil {
		return ""
	}
	for _, i := range r.Interfaces {
		if i.Name == ifName && i.Sandbox != "" {
			return i.MAC
		}
	}
	return ""
}

func (l *lab) del(a *attachment, netns string) error {
	l.forget(a) // it may be assigned again before the plugin has ended
	_, err := l.call("DEL", a, netns, nil)
	return err
}

// forget records that the attachment's address may be assigned to another.
func (l *lab) forget(a *attachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addresses[a.addr] == a.Key {
		delete(l.addresses, a.addr)
	}
}

// dump describes the interface in the pod, without the parts that differ by
// pod.
func (a *attachment) dump() string {
	// Each pod has addresses, and a macvlan a MAC, of its own.
	ofOne := []string{"address ", "route "}
	if a.macvlan {
		ofOne = append(ofOne, "link 1 = ", "link 54 = ") // IFLA_ADDRESS, IFLA_PERM_ADDRESS
	}
	var lines []string
	for line := range strings.Lines(a.pod.Dump(a.IfName)) {
		if !slices.ContainsFunc(ofOne, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 || a.macvlan {
		return strings.Join(lines, "")
	}
	return strings.Join(lines, "") + a.l.rest(a.pod, a.IfName, a.nic)
}

// recorded reports whether the ledger has the attachment.
func (l *lab) recorded(k ledger.Key) bool {
	led, err := ledger.Open(l.state)
	if err != nil {
		l.t.Fatal(err)
	}
	defer led.Close()
	_, err = led.Get(k)
	return !errors.Is(err, ledger.ErrNoRecord)
}

// atHome describes a NIC on the host, except the settings of a veth that cannot
// be restored and are reported instead (docs/reference/returned.md): threaded NAPI, which
// the kernel changes only where NAPI instances exist, and a veth without GRO
// has none; and addr_assign_type, because the kernel never resets the fact that
// a MAC was set.
func (l *lab) atHome(nic int) string {
	var lines []string
	for line := range strings.Lines(l.node.Dump(l.name(nic))) {
		if !strings.HasPrefix(line, "sysfs threaded ") && !strings.HasPrefix(line, "sysfs addr_assign_type ") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "") + l.rest(l.node, l.name(nic), nic)
}

// returned waits until the attachment's NIC is on the host as it was, and makes
// it again if it was destroyed with its pod. Then it is free. The master of a
// macvlan was there all the time; changes that living pods cause on it, such as
// promiscuous mode, are allowed.
//
// end, if not nil, ends the pod that had the NIC, with its namespace. Links that it put
// on the NIC and keeps in a namespace of its own cannot be found, and end with it
// (SECURITY.md, "What stays open").
func (l *lab) returned(a *attachment, end func()) {
	if a.macvlan {
		return
	}
	began := time.Now()
	for deadline := began.Add(l.long(patience)); ; time.Sleep(20 * time.Millisecond) {
		now := l.atHome(a.nic)
		if now == l.home[a.nic] {
			break
		}
		if l.gone(a.nic) {
			l.count("NICs destroyed with their pod", 1)
			l.mu.Lock()
			l.destroyed[a.nic]++
			l.mu.Unlock()
			l.plug(a.nic)
			continue
		}
		if l.miscounted(a.nic, now) {
			l.count("NICs in modes that the kernel did not end", 1)
			l.again(a.nic)
			break
		}
		late := time.Now().After(deadline)
		lacks := time.Since(began) > l.long(settleTime) && lacksDefaultGIDs(now, l.home[a.nic])
		if end != nil && (late || lacks) { // a bond of the pod may occupy the GIDs' entries
			l.count(onlyAfter, 1)
			end()
			end, deadline = nil, time.Now().Add(l.long(patience))
			continue
		}
		if late {
			l.violation(a.history(), "%s is not home as it was, after the end of %s:\n%s", l.name(a.nic), a, differ(l.home[a.nic], now))
			l.again(a.nic)
			break
		}
		if lacks {
			l.reopen(a.nic)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, a.nic)
}

// What is counted in more than one place.
const (
	onlyAfter = "NICs that were as before only after their pod's end"
	reopened  = "times that a NIC was set down and up for its default GIDs"
	lacking   = "checks of pods whose NICs had no default GIDs"
)

// miscounted reports whether the NIC is as before except for modes that the kernel does
// not end (docs/reference/returned.md), and whether that was reported.
func (l *lab) miscounted(nic int, now string) bool {
	l.t.Helper()
	without := func(dump string) string {
		var lines []string
		for line := range strings.Lines(dump) {
			modes := []string{"link 30 = ", "link 61 = ", "sysfs flags "} // IFLA_PROMISCUITY, IFLA_ALLMULTI
			if !slices.ContainsFunc(modes, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	if without(now) != without(l.home[nic]) {
		return false
	}
	led, err := ledger.Open(l.state)
	if err != nil {
		l.t.Fatal(err)
	}
	defer led.Close()
	notes, _ := led.Returned() // one that cannot be read is not this one
	return slices.ContainsFunc(notes, func(r *ledger.Returned) bool {
		return r.NIC == l.name(nic) && strings.Contains(strings.Join(r.Changed, " "), "users of the mode, and counted")
	})
}

// differ returns the difference between two dumps.
func differ(before, now string) string {
	if now == "" {
		return "it is not there"
	}
	return testnet.Diff(before, now)
}

// again destroys a NIC, wherever it is, and makes it again.
func (l *lab) again(nic int) {
	l.pull(nic)
	for deadline := time.Now().Add(l.long(patience)); !l.gone(nic); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("%s cannot be made again: host: %v, wire:\n%s", l.name(nic), l.node.Has(l.name(nic)), l.wires[nic].IP("link"))
		}
	}
	l.plug(nic)
}

// pause waits for a random time.
func pause(r *rand.Rand, most time.Duration, going func() bool) {
	for end := time.Now().Add(time.Duration(r.Int64N(int64(most)))); time.Now().Before(end) && going(); {
		time.Sleep(20 * time.Millisecond)
	}
}

// finish compares the node with its first state, after the end of all pods.
func (l *lab) finish() {
	for deadline := time.Now().Add(l.long(patience)); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.Command(filepath.Join(testnet.Bin(l.t), "railctl"), "--state-dir", l.state, "gc").CombinedOutput()
		left := l.left()
		if len(left) == 0 && err == nil {
			break
		}
		if time.Now().After(deadline) {
			l.violation(nil, "the node still has: %s\nrailctl gc: %v: %s", strings.Join(left, "\n"), err, out)
			break
		}
	}
	for deadline := time.Now().Add(l.long(patience)); ; time.Sleep(100 * time.Millisecond) {
		wrong := ""
		for nic := range modelNICs {
			now := l.atHome(nic)
			if lacksDefaultGIDs(now, l.home[nic]) {
				now = l.reopen(nic)
			}
			if now != l.home[nic] {
				wrong += fmt.Sprintf("%s is not as it was:\n%s", l.name(nic), differ(l.home[nic], now))
			}
		}
		if now := l.node.State() + l.more(); now != l.whole {
			wrong += "the host is not as it was:\n" + testnet.Diff(l.whole, now)
		}
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			l.violation(nil, "%s", wrong)
			return
		}
	}
}

// defaultGIDs matches the lines of [deviceLines] with link-local GIDs, and the GID in them.
var defaultGIDs = regexp.MustCompile(`(?m)^RDMA \S+ GID (fe80:\S*) .*\n`)

// lacksDefaultGIDs reports whether the description of a NIC differs from the one before
// only by default GIDs that are missing, or that another interface has.
//
// While the kernel moves an RDMA device, it does not update its GID table for changes of
// the netdev (ib_enum_all_roce_netdevs). If a pod removes the NIC from a bond at that
// moment, the bond's default GIDs stay in the NIC's two entries until the bond is deleted.
func lacksDefaultGIDs(now, before string) bool {
	if now == "" || now == before || defaultGIDs.ReplaceAllString(now, "") != defaultGIDs.ReplaceAllString(before, "") {
		return false
	}
	own := defaultGIDs.FindStringSubmatch(before)
	for _, line := range defaultGIDs.FindAllStringSubmatch(now, -1) {
		if own == nil || line[1] != own[1] {
			return false
		}
	}
	return true
}

// reopen sets a NIC down and up, as docs/guide/limits.md advises if its default GIDs are
// missing, and restores its neighbor and route. It waits until the NIC is as before, but
// not long, and returns what it is.
func (l *lab) reopen(nic int) (now string) {
	l.count(reopened, 1)
	name := l.name(nic)
	l.node.Batch(nil, "link set "+name+" down", "link set "+name+" up")
	l.node.Batch(nil, l.neighbors(nic, name, "replace")...)
	for deadline := time.Now().Add(l.long(settleTime) / 2); ; time.Sleep(50 * time.Millisecond) {
		if now = l.atHome(nic); now == l.home[nic] || time.Now().After(deadline) {
			return now
		}
	}
}

// watch records changes of the host's links, and the ends of the cables in the wires.
func (l *lab) watch() {
	l.watchLinks(l.node, "", unix.RTM_NEWLINK, unix.RTM_DELLINK)
	for nic, wire := range l.wires {
		l.watchLinks(wire, fmt.Sprintf(" on wire %d", nic), unix.RTM_DELLINK)
	}
}

// watchLinks records messages of these types about the links of a netns. Those about
// a link's end tell the netlink port that asked for it, which is nearly always the
// process ID of a program, and 0 if the kernel ended the link with a netns.
func (l *lab) watchLinks(ns *testnet.Netns, where string, types ...uint16) {
	var s *nl.NetlinkSocket
	err := ns.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := s.SetReceiveTimeout(&unix.Timeval{Usec: 200_000}); err != nil {
		l.t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	l.t.Cleanup(func() { // the socket keeps the netns alive
		close(stop)
		<-ended
	})
	go func() {
		defer close(ended)
		defer s.Close()
		for {
			select {
			case <-stop:
				return
			default:
			}
			messages, _, err := s.Receive()
			if err != nil {
				continue // nothing came, or some are lost because there are many; notes only help to explain a failure
			}
			for _, m := range messages {
				if len(m.Data) < unix.SizeofIfInfomsg || !slices.Contains(types, m.Header.Type) {
					continue
				}
				kind := map[uint16]string{unix.RTM_NEWLINK: "news", unix.RTM_DELLINK: fmt.Sprintf("end by port %d", m.Header.Pid)}[m.Header.Type]
				info := nl.DeserializeIfInfomsg(m.Data)
				attributes, _ := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
				for _, a := range attributes {
					if a.Attr.Type == unix.IFLA_IFNAME {
						l.note("%s of link %d %s%s flags %x", kind, info.Index, a.Value[:len(a.Value)-1], where, info.Flags)
					}
				}
			}
		}
	}()
}

// left lists records and addresses.
func (l *lab) left() (left []string) {
	entries, err := os.ReadDir(filepath.Join(l.state, "attachments"))
	if err != nil {
		left = append(left, err.Error())
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") {
			left = append(left, e.Name())
		}
	}
	for _, path := range testnet.Leftovers(l.t, filepath.Join(l.state, "ipam")) {
		if strings.HasSuffix(path, ".json") || strings.Contains(path, "/reserved/") {
			left = append(left, "the pool has "+path)
		}
	}
	return left
}
