package testnet

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Netns is a network namespace with a name under /run/netns.
type Netns struct {
	*netns.Netns
	Name string
	t    testing.TB
}

// newName returns a name for a namespace, and removes that name with the test.
func newName(t testing.TB, role string) string {
	t.Helper()
	name, err := scratch.Name(role)
	if err != nil {
		t.Fatal(err)
	}
	remove(t, name)
	return name
}

// remove removes the name of a namespace with the test.
func remove(t testing.TB, name string) {
	t.Cleanup(func() {
		if err := scratch.RemoveNetns(name); err != nil {
			t.Errorf("the network namespace %s stays: %v", name, err)
		}
	})
}

// NewNetns makes a namespace that ends with the test. It has no duplicate
// address detection, so that its state settles at once; a test of DAD turns it
// on for one interface.
func NewNetns(t testing.TB, role string) *Netns {
	t.Helper()
	need.Root(t)
	name := newName(t, role)
	addNamed(t, name)
	opened, err := netns.Open("/run/netns/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	n := &Netns{Netns: opened, Name: name, t: t}
	n.SetFlags("lo", unix.IFF_UP, unix.IFF_UP)
	n.Sysctl("ipv6/conf/default/accept_dad", "0")
	return n
}

// Here names the namespace of this process for the time of the test: for tests
// whose host netns is the machine's own, in the rig.
func Here(t testing.TB) *Netns {
	t.Helper()
	return OfProcess(t, os.Getpid())
}

// OfProcess names the namespace of a process for the time of the test.
func OfProcess(t testing.TB, pid int) *Netns {
	t.Helper()
	name := newName(t, "of")
	command(t, "ip", "netns", "attach", name, strconv.Itoa(pid))
	opened, err := netns.Open("/run/netns/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return &Netns{Netns: opened, Name: name, t: t}
}

// Current returns the calling thread's namespace, without a name.
func Current(t testing.TB) *Netns {
	t.Helper()
	need.Root(t)
	opened, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	return &Netns{Netns: opened, t: t}
}

// Kill removes the namespace's path and every handle on it, as the death of a
// pod does. It does not wait.
func (n *Netns) Kill() {
	n.t.Helper()
	n.Netns.Close()
	n.Unname()
}

// Delete ends the namespace before the test does: it closes every handle of the
// test, so that the kernel destroys the namespace. The sockets of the handle
// keep it for some more milliseconds (RCU); Delete waits for that.
func (n *Netns) Delete() {
	n.t.Helper()
	n.Kill()
	if !Within(awaitTime, func() bool { return !netns.Exists(n.ID, "") }) {
		n.t.Fatalf("netns %s still exists after %v, and is held by:\n%s", n.Name, awaitTime, n.holders())
	}
}

// holders lists the processes and mounts that refer to the namespace, with each process's
// command and kernel stack. It cannot show sockets.
func (n *Netns) holders() string {
	var all strings.Builder
	for _, path := range glob("/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*") {
		// The link of a file may be the path by which it was opened, so it is followed.
		var file unix.Stat_t
		if err := unix.Stat(path, &file); err != nil || file.Ino != n.ID.Inode {
			continue
		}
		owner := filepath.Dir(filepath.Dir(path)) // a thread or a process, which may have ended
		command, _ := os.ReadFile(owner + "/cmdline")
		stack, _ := os.ReadFile(owner + "/stack")
		fmt.Fprintf(&all, "%s of %q\n%s", path, command, stack)
	}
	seen := map[string]bool{} // mount namespaces
	for _, path := range glob("/proc/[0-9]*/ns/mnt") {
		space, err := os.Readlink(path)
		if err != nil || seen[space] {
			continue
		}
		seen[space] = true
		process := filepath.Dir(filepath.Dir(path))
		mounts, _ := os.ReadFile(process + "/mountinfo")
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, n.ID.String()) {
				fmt.Fprintf(&all, "%s: %s", process, line)
			}
		}
	}
	return all.String()
}

// glob returns the paths that match one of the patterns, which are well-formed.
func glob(patterns ...string) (paths []string) {
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern)
		paths = append(paths, found...)
	}
	return paths
}

// awaitTime is how long a namespace may take to end. In the rig, on a machine that was busy
// with other work, one took more than ten seconds.
const awaitTime = time.Minute

// await waits until done returns true, and fails the test if that takes longer
// than awaitTime.
func (n *Netns) await(what string, done func() bool) {
	n.t.Helper()
	if !Within(awaitTime, done) {
		n.t.Fatalf("still waiting for %s after %v", what, awaitTime)
	}
}

// Unname removes the namespace's path. Other references keep the namespace
// alive.
func (n *Netns) Unname() {
	n.t.Helper()
	if err := scratch.RemoveNetns(n.Name); err != nil {
		n.t.Fatal(err)
	}
}

// Rename replaces the name of the namespace.
func Rename(t testing.TB, n *Netns, name string) {
	t.Helper()
	command(t, "ip", "netns", "attach", name, strconv.Itoa(os.Getpid()))
	// "ip netns attach" needs a process; mount the right namespace over it.
	for _, args := range [][]string{{"umount", "/run/netns/" + name}, {"mount", "--bind", n.Path, "/run/netns/" + name}} {
		command(t, args[0], args[1:]...)
	}
	remove(t, name)
	n.Unname()
	n.Name, n.Path = name, "/run/netns/"+name
}

// IP runs ip(8) in the namespace and returns its output.
func (n *Netns) IP(args ...string) string {
	n.t.Helper()
	return command(n.t, "ip", append([]string{"-n", n.Name}, args...)...)
}

// Batch runs these commands of ip(8) in the namespace in one process, with its
// options flags and returns their output. It stops at the first that fails.
func (n *Netns) Batch(flags []string, commands ...string) string {
	n.t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command("ip", append(append([]string{"-n", n.Name}, flags...), "-batch", "-")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Join(commands, "\n")+"\n"), &out, &errOut
	if err := cmd.Run(); err != nil {
		n.t.Fatalf("ip, in %s, of these:\n%s\n%v\n%s", n.Name, strings.Join(commands, "\n"), err, errOut.Bytes())
	}
	return out.String()
}

// Exec runs a program in the namespace, as [Netns.Start] does, and returns its output.
func (n *Netns) Exec(args ...string) string {
	n.t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := n.RunCommand(cmd); err != nil {
		n.t.Fatalf("%s in %s: %v\n%s%s", strings.Join(args, " "), n.Name, err, &out, &errOut)
	}
	return out.String()
}

// Start starts the command in the namespace as "ip netns exec" does (ip-netns(8)), with a /sys that
// shows the namespace, but without a process of ip(8), which would take longer than most programs
// of tests.
func (n *Netns) Start(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		err := n.Enter()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// RunCommand starts the command in the namespace, as [Netns.Start] does, and awaits its end.
func (n *Netns) RunCommand(cmd *exec.Cmd) error {
	if err := n.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// A thread of [Netns.Enter] ends with its goroutine, but the runtime parks the first one for good,
// where it would keep the namespace. So the main goroutine keeps it.
func init() { runtime.LockOSThread() }

// Enter moves the goroutine for good into a thread that is in the namespace and has a mount
// namespace of its own, whose /sys shows the network namespace. The thread ends with the goroutine.
func (n *Netns) Enter() error {
	runtime.LockOSThread()
	netns, err := os.Open(n.Path)
	if err != nil {
		return err
	}
	defer netns.Close()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"setns " + n.Path, func() error { return unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET) }},
		{"unshare", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
		{"mount --make-rslave /", func() error { return unix.Mount("", "/", "none", unix.MS_SLAVE|unix.MS_REC, "") }},
		{"umount /sys", func() error { return unix.Unmount("/sys", unix.MNT_DETACH) }},
		{"mount /sys", func() error { return unix.Mount(n.Name, "/sys", "sysfs", 0, "") }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// Sysctl sets a sysctl below net/ in the namespace.
func (n *Netns) Sysctl(key, value string) {
	n.t.Helper()
	err := n.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0) })
	if err != nil {
		n.t.Fatalf("sysctl %s=%s in %s: %v", key, value, n.Name, err)
	}
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &out, &errOut)
	}
	return out.String() // without warnings, such as that a peer's netns just ended
}

// NIC makes a veth NIC that is up, with MTU 9000. Its cable's other end is in
// peer (a switch or another node), up as well and named <name>-sw there.
func (n *Netns) NIC(name string, peer *Netns) {
	n.t.Helper()
	n.veth(name, 9000, peer)
	n.SetFlags(name, unix.IFF_UP, unix.IFF_UP)
	peer.SetFlags(name+"-sw", unix.IFF_UP, unix.IFF_UP)
	// The kernel adds the link-local address a moment after the carrier.
	n.await("the link-local address of "+name, func() bool { return n.hasLinkLocal(name) })
	peer.await("the link-local address of "+name+"-sw", func() bool { return peer.hasLinkLocal(name + "-sw") })
}

// veth makes a veth pair, whose other end is named <name>-sw, in peer.
func (n *Netns) veth(name string, mtu int, peer *Netns) {
	n.t.Helper()
	other, err := os.Open(peer.Path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer other.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = name, mtu
	if err := n.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attributes, PeerName: name + "-sw", PeerMTU: uint32(mtu), PeerTxQLen: -1, PeerNamespace: netlink.NsFd(other.Fd()),
		})
	}); err != nil {
		n.t.Fatalf("make %s in %s: %v", name, n.Name, err)
	}
}

// AddAltname adds an alternative name to the interface.
func (n *Netns) AddAltname(name, altname string) {
	n.t.Helper()
	if err := n.Do(func() error {
		index, err := indexOf(name)
		if err != nil {
			return err
		}
		return netlink.LinkAddAltName(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, altname)
	}); err != nil {
		n.t.Fatalf("name %s in %s %s: %v", name, n.Name, altname, err)
	}
}

// hasLinkLocal reports whether the interface has its IPv6 link-local address,
// and no tentative address.
func (n *Netns) hasLinkLocal(name string) bool {
	n.t.Helper()
	has, tentative := false, false
	for _, a := range n.ipv6Addresses() {
		if a.name == name {
			has = has || strings.HasPrefix(a.address, "fe80")
			tentative = tentative || a.flags&unix.IFA_F_TENTATIVE != 0
		}
	}
	return has && !tentative
}

// State returns all compared facts about the namespace's network: links,
// addresses, routes of all tables, rules, permanent neighbors and the sysctls
// of each interface, without counters, interface indexes and queue pairs. It is sorted JSON
// and sysctl lines, one fact per line, so that a difference is easy to read.
func (n *Netns) State() string {
	n.t.Helper()
	return n.objects() + n.sysctls()
}

// objects is the part of State that ip(8) tells.
func (n *Netns) objects() string {
	n.t.Helper()
	Within(settleTime, func() bool { return !n.unsettled() }) // if it does not settle, the comparison shows it
	return n.objectsNow()
}

// objectsNow is objects of a namespace that may not have settled.
func (n *Netns) objectsNow() string {
	n.t.Helper()
	var b strings.Builder
	n.describe(&b, "link", "addr", "route show table all", "rule", "neigh show nud permanent")
	n.ipv6Rules(&b)
	return b.String()
}

// ipv6Rules writes the policy rules of IPv6, a line each: its header (struct fib_rule_hdr) and its
// attributes. "ip rule" of the same process shows those of IPv4 only, and starting another one is
// most of what a state costs.
func (n *Netns) ipv6Rules(b *strings.Builder) {
	n.t.Helper()
	const header = 12
	rules, err := n.ask(unix.NETLINK_ROUTE, unix.RTM_GETRULE, unix.NLM_F_DUMP, []byte{unix.AF_INET6, header - 1: 0})
	if err != nil {
		n.t.Fatal(err)
	}
	b.WriteString("# rules of IPv6\n")
	for _, r := range rules {
		var attributes strings.Builder
		dump(&attributes, "", r[header:], func(string) bool { return false }, nil)
		fmt.Fprintf(b, "rule %x %s\n", r[:header], strings.ReplaceAll(strings.TrimSpace(attributes.String()), "\n", ", "))
	}
}

// sysctls is the other part of State.
func (n *Netns) sysctls() string {
	n.t.Helper()
	var b strings.Builder
	links, err := link.Links(n.Netns)
	if err != nil {
		n.t.Fatal(err)
	}
	slices.SortFunc(links, func(a, b *link.Link) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range links {
		settings, err := sysctl.Read(n.Netns, l.Name)
		if err != nil {
			n.t.Fatal(err)
		}
		lines := make([]string, 0, len(settings))
		for k, v := range settings {
			lines = append(lines, fmt.Sprintf("%s %s = %s", l.Name, k, v))
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, "\n") + "\n")
	}
	return b.String()
}

// unsettled reports whether the kernel is still about to add addresses and
// routes: it accepts a new IPv6 address a moment later, even without duplicate
// address detection, then its worker adds the address's route
// (addrconf_dad_completed), and it reports a carrier (LOWER_UP) up to a second
// late (linkwatch). Until then the link has NO-CARRIER and no IPv6 routes.
func (n *Netns) unsettled() bool {
	n.t.Helper()
	links, err := n.ask(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.NLM_F_DUMP, words(0, 0, 0, 0))
	if err != nil {
		n.t.Fatal(err)
	}
	const carrier = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
	running := map[uint32]bool{}
	for _, l := range links {
		switch binary.NativeEndian.Uint32(l[8:]) & carrier {
		case unix.IFF_UP | unix.IFF_LOWER_UP:
			return true
		case carrier:
			running[binary.NativeEndian.Uint32(l[4:])] = true
		}
	}
	addresses := n.ipv6Addresses()
	local := map[string]bool{} // address and link's name
	// net/ipv6/route.c, rt6_info_route: destination, its prefix length, six more, flags, and the link.
	// A route to the prefix of an address, which may be the address alone, has no RTF_LOCAL.
	for _, f := range n.procNet("ipv6_route", 10) {
		if flags, err := strconv.ParseUint(f[8], 16, 32); err == nil && flags&unix.RTF_LOCAL != 0 {
			local[f[0]+" "+f[9]] = true
		}
	}
	return slices.ContainsFunc(addresses, func(a ipv6Address) bool {
		return a.flags&unix.IFA_F_TENTATIVE != 0 ||
			a.flags&unix.IFA_F_DADFAILED == 0 && running[a.index] && !local[a.address+" "+a.name]
	})
}

// volatile are the keys of ip's JSON that are not configuration.
var volatile = []string{
	"ifindex", "link_index", "stats", "stats64", "event", "valid_life_time", "preferred_life_time", "expires",
	"hello_timer", "tcn_timer", "topology_change_timer", "gc_timer", "forward_delay_timer", "hold_timer", "message_age_timer",
}

// describe writes the output of these commands of ip(8). One process runs them
// all, because starting one is slow in a virtual machine.
func (n *Netns) describe(b *strings.Builder, commands ...string) {
	n.t.Helper()
	out := n.Batch([]string{"-d", "-j"}, commands...)
	for d := json.NewDecoder(strings.NewReader(out)); len(commands) > 0; commands = commands[1:] {
		var v any
		if err := d.Decode(&v); err != nil {
			n.t.Fatalf("ip %s printed no JSON: %v\n%s", commands[0], err, out)
		}
		drop(v)
		if kind, _, _ := strings.Cut(commands[0], " "); kind != "rule" {
			sortList(v)
		}
		text, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			n.t.Fatal(err)
		}
		fmt.Fprintf(b, "# ip %s\n%s\n", commands[0], text)
	}
}

// sortList sorts a list by its elements' text. Links are listed by their index,
// which a NIC may lose in a pod; routes that differ only in their interface
// (fe80::/64), and the hops of an IPv6 multipath route, in the order in which
// the interfaces last came up; and neighbors by a hash of the interface's
// index. This order is not configuration.
func sortList(v any) {
	list, ok := v.([]any)
	if !ok {
		return
	}
	type element struct {
		text  string
		value any
	}
	all := make([]element, len(list))
	for i, e := range list {
		text, _ := json.Marshal(e) // came from JSON
		all[i] = element{string(text), e}
	}
	slices.SortFunc(all, func(a, b element) int { return strings.Compare(a.text, b.text) })
	for i, e := range all {
		list[i] = e.value
	}
}

// queuePair matches the link-layer address of an InfiniBand interface: the number of its queue pair in bytes 1
// to 3 is another one when the kernel makes the interface anew.
var queuePair = regexp.MustCompile(`^([0-9a-f]{2})(?::[0-9a-f]{2}){3}((?::[0-9a-f]{2}){16})$`)

func drop(v any) {
	switch v := v.(type) {
	case map[string]any:
		// The queueing of a link that is down depends on whether it ever was
		// up.
		if flags, ok := v["flags"].([]any); ok && !slices.Contains(flags, any("UP")) {
			delete(v, "qdisc")
		}
		for _, k := range volatile {
			delete(v, k)
		}
		sortList(v["nexthops"])
		for k, e := range v {
			if text, ok := e.(string); ok {
				v[k] = queuePair.ReplaceAllString(text, "$1:QP$2")
			}
			drop(e)
		}
	case []any:
		for _, e := range v {
			drop(e)
		}
	}
}

// Inside runs f on a thread in the namespace: for code whose host netns is that
// of the calling thread.
func (n *Netns) Inside(f func()) {
	n.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := n.Do(func() error { f(); return nil }); err != nil {
		n.t.Fatal(err)
	}
}

// Diff returns the lines in which two states differ, "" if they are equal.
func Diff(before, after string) string {
	if before == after {
		return ""
	}
	dir, err := scratch.MkdirTemp("diff")
	if err != nil {
		return err.Error()
	}
	defer scratch.Remove(dir)
	for name, text := range map[string]string{"before": before, "after": after} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err.Error()
		}
	}
	out, _ := exec.Command("diff", "-U2", filepath.Join(dir, "before"), filepath.Join(dir, "after")).Output()
	return string(out)
}

// Settled waits until the namespace's state equals before, and returns the
// difference that is left after returnTime: the kernel reports a returning
// carrier up to a second late (linkwatch), on a busy machine even later.
func (n *Netns) Settled(before string) string {
	n.t.Helper()
	if Within(returnTime, func() bool {
		if n.unsettled() {
			return false
		}
		now := n.objectsNow() // the sysctls take as long again
		return strings.HasPrefix(before, now) && before == now+n.sysctls()
	}) {
		return ""
	}
	return Diff(before, n.State()) // one more look, which waits as long again
}

// settleTime is how long the kernel may take until it has done what it does later.
const settleTime = 10 * time.Second

// returnTime is how long a namespace may take until it is as it was. In the rig (its mark is in
// the environment, integration/rig) an InfiniBand port joins its groups again after up to 16 s
// (IPOIB_MAX_BACKOFF_SECONDS), and only then has the MTU that it had.
var returnTime = func() time.Duration {
	if os.Getenv("RAIL_CNI_RIG") != "" {
		return time.Minute
	}
	return settleTime
}()
