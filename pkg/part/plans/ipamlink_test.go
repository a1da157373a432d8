package plans_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/part/address"
)

// lookingAt returns a directory with an IPAM plugin that works on the interface, as a plugin for
// DHCP or for conflict detection does. The plugin looks for the interface immediately, and writes
// what it found to the file found.
func (b *bench) lookingAt(found string) (path string) {
	b.t.Helper()
	return b.answering(`
look() { ip netns exec ` + b.pod.Name + ` ip -o "$@" dev "$CNI_IFNAME" 2>/dev/null | tr '\n\\' '  '; }
echo "$CNI_COMMAND $(look link show) / $(look addr show)" >>` + found + `
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"},{"address":"fd00:12::3/64"}]}' ;;
esac`)
}

func TestIPAMPluginThatIsNotKnownWorksOnTheInterface(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			before := b.node.State()
			heard := b.wire.Announced(nicName + "-sw")
			found := filepath.Join(t.TempDir(), "found")
			add := b.call("ADD", b.of(plugin, map[string]any{"ipam": map[string]any{"type": "spy"}}))
			add.Path = b.lookingAt(found)
			b.node.MustRun(add)
			if got := b.pod.IP("addr", "show", "net1"); !strings.Contains(got, "10.1.2.3/24") || !strings.Contains(got, "fd00:12::3/64") {
				t.Errorf("the pod has %s", got)
			}
			// An interface that was up before its addresses came is announced all the same.
			announced := func() bool {
				return slices.ContainsFunc(heard(), func(line string) bool { return strings.HasPrefix(line, "10.1.2.3 ") })
			}
			for deadline := time.Now().Add(10 * time.Second); !announced(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the address was not announced: %v", heard())
				}
			}
			b.node.MustRun(add.With("DEL"))
			b.node.MustRun(add.With("DEL")) // without a record, and without the interface
			b.untouched(before)
			calls := strings.Split(strings.TrimSpace(string(readFile(t, found))), "\n")
			if len(calls) != 3 || !strings.HasPrefix(calls[0], "ADD ") || !strings.HasPrefix(calls[1], "DEL ") {
				t.Fatalf("calls: %q", calls)
			}
			for i, call := range calls[:2] {
				addressed := strings.Contains(call, "10.1.2.3/24") && strings.Contains(call, "fd00:12::3/64")
				if !strings.Contains(call, ": net1") || !strings.Contains(call, ",UP") || addressed != (i == 1) {
					t.Errorf("the plugin did not find net1 up, and with its addresses at DEL: %s", call)
				}
			}
		})
	}
}

// The interface is there also for the DEL of an attachment that has no record.
func TestIPAMPluginFreesByTheInterfaceWithoutARecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	found := filepath.Join(t.TempDir(), "found")
	add := b.call("ADD", b.macvlanConfig(map[string]any{"ipam": map[string]any{"type": "spy"}}))
	add.Path = b.lookingAt(found)
	b.node.MustRun(add)
	if err := os.RemoveAll(filepath.Join(b.state, "attachments")); err != nil {
		t.Fatal(err)
	}
	b.node.MustRun(add.With("DEL"))
	if calls := strings.Split(strings.TrimSpace(string(readFile(t, found))), "\n"); len(calls) != 2 || !strings.Contains(calls[1], ",UP") {
		t.Errorf("calls: %q", calls)
	}
	if b.pod.Has("net1") {
		t.Error("net1 is left in the pod")
	}
	b.untouched(before)
}

// An IPAM plugin that hangs in DEL delays the return of the NIC, but does not prevent it. It also
// does not keep a macvlan whose record is lost in the pod.
func TestIPAMPluginThatHangsKeepsNoInterface(t *testing.T) {
	t.Parallel()
	for name, plugin := range map[string]string{"NIC": "host-device", "macvlan without a record": "macvlan"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			before := b.node.State()
			gate := filepath.Join(t.TempDir(), "gate")
			add := b.call("ADD", b.of(plugin, map[string]any{"ipam": map[string]any{"type": "spy"}}))
			add.Path = b.answering(`case $CNI_COMMAND in ADD) echo '` + spyResult + `' ;; DEL) while ! [ -e ` + gate + ` ]; do sleep 0.1; done ;; esac`)
			b.node.MustRun(add)
			if plugin == "macvlan" {
				if err := os.RemoveAll(filepath.Join(b.state, "attachments")); err != nil {
					t.Fatal(err)
				}
			}
			began, done := time.Now(), make(chan error, 1)
			go func() {
				_, err := b.node.Run(add.With("DEL"))
				done <- err
			}()
			for ; b.pod.Has("net1"); time.Sleep(20 * time.Millisecond) {
				if time.Since(began) > 2*time.Minute {
					t.Fatal("the interface waits for the plugin")
				}
			}
			timing.Check(t, "DEL until the interface has left", time.Since(began), 12*time.Second)
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("DEL: %v", err)
			}
			b.untouched(before)
		})
	}
}

// A failed ADD frees by the interface, too. Its result has a route that the kernel refuses.
func TestFailedADDFreesByTheInterface(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	found := filepath.Join(t.TempDir(), "found")
	add := b.call("ADD", b.config(map[string]any{"ipam": map[string]any{"type": "spy"}}))
	add.Path = b.answering(`
echo "$CNI_COMMAND $(ip netns exec ` + b.pod.Name + ` ip -o link show "$CNI_IFNAME" 2>/dev/null)" >>` + found + `
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}],"routes":[{"dst":"10.7.0.0/16","gw":"172.16.0.1"}]}' || true`)
	_, err := b.node.Run(add)
	fails(t, err, 0, "10.7.0.0/16")
	if calls := strings.Split(strings.TrimSpace(string(readFile(t, found))), "\n"); len(calls) != 2 || !strings.Contains(calls[1], ",UP") {
		t.Errorf("calls: %q", calls)
	}
	b.untouched(before)
}

// dhcpd is a DHCP server on the wire, and upstream's daemon on the node.
type dhcpd struct {
	*bench
	dir      string
	socket   string
	released func() []string // addresses
}

// release returns the address that the sender of an Ethernet frame releases by DHCP (RFC 2131),
// "" if it does not.
func release(frame []byte) string {
	const udp = 14 + 20 // an IPv4 header without options
	const server, bootp = 67, udp + 8
	const ciaddr, options = bootp + 12, bootp + 240
	if len(frame) < options+3 || frame[23] != unix.IPPROTO_UDP || frame[udp+2] != 0 || frame[udp+3] != server ||
		!bytes.Contains(frame[options:], []byte{53, 1, 7}) { // message type: DHCPRELEASE
		return ""
	}
	return net.IP(frame[ciaddr : ciaddr+4]).String()
}

// newDHCP starts a DHCP server with a pool of four addresses on the NIC's wire, and the daemon
// of upstream's plugin dhcp.
func newDHCP(t *testing.T, lease time.Duration) *dhcpd {
	t.Helper()
	b := newBench(t)
	runtime, err := controlplane.Built("RAIL_CNI_RUNTIME", "tools", "runtime")
	need.NoError(t, err)
	d := &dhcpd{bench: b, dir: scratch.Dir(t)}
	d.socket = filepath.Join(d.dir, "dhcp.sock")
	wire := nicName + "-sw"
	d.released = b.wire.Capture(wire, release)
	b.wire.IP("addr", "add", "10.78.0.1/24", "dev", wire)
	config := fmt.Sprintf("start 10.78.0.50\nend 10.78.0.53\ninterface %s\nlease_file %s/leases\npidfile %s/pid\nmin_lease 1\n"+
		"opt subnet 255.255.255.0\nopt router 10.78.0.1\nopt lease %d\n", wire, d.dir, d.dir, int(lease.Seconds()))
	for name, text := range map[string]string{"conf": config, "leases": ""} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.start(b.wire, "server", filepath.Join(runtime, "busybox"), "udhcpd", "-f", filepath.Join(d.dir, "conf"))
	d.start(b.node, "daemon", filepath.Join(testnet.Peers(t), "dhcp"), "daemon", "-socketpath", d.socket, "-timeout", "5s")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", d.socket); err == nil { // the file alone may be there before it listens
			_ = conn.Close()
			return d
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon does not start: %s", d.log("daemon"))
		}
	}
}

// start runs a program in a namespace until the test ends. It writes to the file NAME.
func (d *dhcpd) start(in *testnet.Netns, name string, program ...string) {
	d.t.Helper()
	p, err := process.Start(process.Spec{
		Name: name, Log: filepath.Join(d.dir, name), Args: append([]string{"ip", "netns", "exec", in.Name}, program...),
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(p.Kill)
}

func (d *dhcpd) log(name string) string { return string(readFile(d.t, filepath.Join(d.dir, name))) }

// until waits until done returns true.
func (d *dhcpd) until(what string, done func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("waited for %s; the server:\n%s\nthe daemon:\n%s", what, d.log("server"), d.log("daemon"))
		}
	}
}

func (d *dhcpd) of(plugin string, pod int) testnet.Call {
	ipam := map[string]any{"ipam": map[string]any{"type": "dhcp", "daemonSocketPath": d.socket}}
	c := d.call("ADD", d.bench.of(plugin, ipam))
	c.ContainerID = fmt.Sprintf("pod%d", pod)
	return c
}

// TestLeasesOfDHCPAreReleased has upstream's dhcp with a DHCP server whose pool of four
// addresses is to suffice for ten pods, one after another.
func TestLeasesOfDHCPAreReleased(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			d := newDHCP(t, 10*time.Minute)
			before := d.node.State()
			for pod := range 10 {
				c := d.of(plugin, pod)
				var result struct {
					IPs []struct{ Address, Gateway string }
				}
				if err := json.Unmarshal(d.node.MustRun(c), &result); err != nil || len(result.IPs) != 1 ||
					!strings.HasPrefix(result.IPs[0].Address, "10.78.0.5") || result.IPs[0].Gateway != "10.78.0.1" {
					t.Fatalf("pod %d: result %+v, %v", pod, result, err)
				}
				d.pod.Exec("ping", "-c", "1", "-w", "10", "10.78.0.1")
				d.node.MustRun(c.With("DEL"))
				address, _, _ := strings.Cut(result.IPs[0].Address, "/")
				d.until("a release of "+address, func() bool { released := d.released(); return len(released) == pod+1 && released[pod] == address })
			}
			d.untouched(before)
			if bytes.Contains([]byte(d.log("daemon")), []byte("failed to release")) {
				t.Errorf("the daemon could not release:\n%s", d.log("daemon"))
			}
		})
	}
}

// TestLeaseOfDHCPIsRenewed has a lease that is renewed while the pod runs.
func TestLeaseOfDHCPIsRenewed(t *testing.T) {
	t.Parallel()
	d := newDHCP(t, 4*time.Second)
	before := d.node.State()
	c := d.of("host-device", 1)
	d.node.MustRun(c)
	d.until("the lease and two renewals", func() bool { return strings.Count(d.log("server"), "sending ACK") >= 3 })
	d.pod.Exec("ping", "-c", "1", "-w", "10", "10.78.0.1")
	d.node.MustRun(c.With("DEL"))
	d.until("a release", func() bool { return len(d.released()) == 1 })
	d.untouched(before)
}

func TestIPAMPluginsThatNeedNoInterface(t *testing.T) {
	ask, _ := address.IPAM()
	for plugin, want := range map[string]bool{
		"": false, "whereabouts": false, "rail-whereabouts": false, "host-local": false, "static": false, "nv-ipam": false,
		"dhcp": true, "spiderpool": true, "my-host-local": true,
	} {
		if got := ask.ByInterface(plugin); got != want {
			t.Errorf("%q works on the interface: %v", plugin, got)
		}
	}
}
