package plans_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// This file proves that the interfaces of a pod with eight rails in one subnet keep apart:
// what a program sends from an address leaves by the NIC of that address, and no other NIC
// answers for the address. The test listens at the switch ports of all NICs.

const fluxRails = 8

// fluxLab is a network of two nodes with eight NICs each, and a pod on each node that has all
// of the node's. Each pod also has an interface of the cluster's network, with the default
// route.
type fluxLab struct {
	t        *testing.T
	wire     *testnet.Netns // the switches
	pods     [2]*testnet.Netns
	segments []int              // ifindexes of the switches: one for each rail, or one for all
	ports    map[int]string     // switch ports by ifindex
	owner    map[netip.Addr]int // the port of an address
	segment  map[netip.Addr]int // the segment of an address
	of       map[netip.Addr]int // the pod of an address
	order    []netip.Addr       // all addresses
	socket   int                // hears and sends everything in wire

	mu    sync.Mutex
	heard map[string]int // "udp 10.1.0.10" by the right port
	wrong []string
	last  time.Time // when the last frame was heard
}

func fluxAddresses(pod, rail int) (v4, v6 string) {
	return fmt.Sprintf("10.1.%d.%d/16", rail, 10+pod), fmt.Sprintf("fd01::%x:%x/64", rail+1, 0x10+pod)
}

// newFluxLab makes the lab. mode is the routing mode of each rail's network, and more has further
// keys of the network. filter is the host's rp_filter for all interfaces. If together is true, all
// rails share one switch.
func newFluxLab(t *testing.T, plugin, mode, filter string, together bool, more map[string]any) *fluxLab {
	t.Helper()
	l := &fluxLab{
		t: t, wire: testnet.NewNetns(t, "wire"), ports: map[int]string{}, owner: map[netip.Addr]int{}, segment: map[netip.Addr]int{}, of: map[netip.Addr]int{},
		heard: map[string]int{},
	}
	switches := fluxRails
	if together {
		switches = 1
	}
	for s := range switches {
		l.wire.Batch(nil, fmt.Sprintf("link add br%d type bridge mcast_snooping 0", s), fmt.Sprintf("link set br%d up", s))
		l.segments = append(l.segments, l.index(fmt.Sprintf("br%d", s)))
	}
	for pod := range l.pods {
		l.addPod(pod, plugin, mode, filter, more)
	}
	l.listen()
	return l
}

func (l *fluxLab) index(name string) int {
	l.t.Helper()
	found, err := link.ByName(l.wire.Netns, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return found.Index
}

// cable makes a NIC in a namespace, whose other end is a port in wire.
func (l *fluxLab) cable(of *testnet.Netns, name, master string) int {
	l.t.Helper()
	port := name + "-sw"
	l.wire.Batch(nil, "link add "+port+" type veth peer name "+name+" netns "+of.Name, "link set "+port+" up")
	if master != "" {
		l.wire.IP("link", "set", port, "master", master)
	}
	of.IP("link", "set", name, "up")
	index := l.index(port)
	l.ports[index] = port
	return index
}

// addPod makes a node with its pod, and attaches the pod to all rails.
func (l *fluxLab) addPod(number int, plugin, mode, filter string, more map[string]any) {
	l.t.Helper()
	node, pod := testnet.NewNetns(l.t, "node"), testnet.NewNetns(l.t, "pod")
	l.pods[number] = pod
	for _, n := range []*testnet.Netns{node, pod} { // a pod netns has the host's value
		n.Sysctl("ipv4/conf/all/rp_filter", filter)
		n.Sysctl("ipv4/conf/default/rp_filter", filter)
	}
	eth := fmt.Sprintf("p%deth", number)
	l.cable(pod, eth, "")
	pod.Batch(nil, fmt.Sprintf("addr add 10.244.%d.5/24 dev %s", number, eth), "route add default via "+fmt.Sprintf("10.244.%d.1", number),
		"addr add fd44::5/64 dev "+eth, "route add default via fd44::1 dev "+eth)
	b := &bench{t: l.t, node: node, pod: pod, state: filepath.Join(l.t.TempDir(), "state")}
	for rail := range fluxRails {
		nic := fmt.Sprintf("n%dr%d", number, rail)
		segment := rail % len(l.segments)
		port := l.cable(node, nic, fmt.Sprintf("br%d", segment))
		v4, v6 := fluxAddresses(number, rail)
		keys := map[string]any{
			"device": nic, "master": nic, "name": fmt.Sprint("rail", rail), "routing": map[string]any{"mode": mode},
			"ipam": static(nil, v4+" 10.1.255.1", v6+" fd01::ff:1"),
		}
		if mode == "source" {
			keys["routing"] = source(1000 + rail)
		}
		for k, v := range more {
			keys[k] = v
		}
		call := b.call("ADD", b.of(plugin, keys))
		call.IfName = fmt.Sprint("net", rail)
		node.MustRun(call)
		for _, text := range []string{v4, v6} {
			a := netip.MustParsePrefix(text).Addr()
			l.owner[a], l.segment[a], l.of[a] = port, segment, number
			l.order = append(l.order, a)
		}
	}
}

// inWire runs f in the namespace of the switches.
func (l *fluxLab) inWire(f func() error) {
	l.t.Helper()
	if err := l.wire.Do(f); err != nil {
		l.t.Fatal(err)
	}
}

// listen notes the frames that NICs send, by the ports at which they arrive.
func (l *fluxLab) listen() {
	l.t.Helper()
	l.inWire(func() (err error) {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
		if l.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(l.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(l.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for frame := make([]byte, 1<<16); ; {
			select {
			case <-end:
				return
			default:
			}
			size, from, err := unix.Recvfrom(l.socket, frame, 0)
			ll, ok := from.(*unix.SockaddrLinklayer)
			if err != nil || !ok || ll.Pkttype == unix.PACKET_OUTGOING {
				continue // the time of SO_RCVTIMEO is over, or a switch sends
			}
			if port, known := l.ports[ll.Ifindex]; known {
				l.note(ll.Ifindex, port, frame[:size])
			}
		}
	}()
	l.t.Cleanup(func() { close(end); <-done; _ = unix.Close(l.socket) })
}

// note notes a frame: who claims which address.
func (l *fluxLab) note(index int, port string, frame []byte) {
	kind, address := claimOf(frame)
	owner, known := l.owner[address]
	if !known {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
	if owner != index {
		l.wrong = append(l.wrong, fmt.Sprintf("%s of %s, whose port is %s, came from %s", kind, address, l.ports[owner], port))
		return
	}
	l.heard[kind+" "+address.String()]++
}

// claimOf returns the address that an Ethernet frame says its sender has, and how: the source
// of a packet, the sender of ARP, or the target of a neighbor advertisement.
func claimOf(frame []byte) (kind string, address netip.Addr) {
	if len(frame) < 14 {
		return "", address
	}
	body := frame[14:]
	at := func(kind string, from, to int) (string, netip.Addr) {
		a, _ := netip.AddrFromSlice(body[from:to]) // its length is right
		return kind, a
	}
	switch ether := binary.BigEndian.Uint16(frame[12:]); {
	case ether == unix.ETH_P_ARP && len(body) >= 28 && body[7] == 2:
		return at("answer", 14, 18)
	case ether == unix.ETH_P_ARP && len(body) >= 28:
		return at("question", 14, 18)
	case ether == unix.ETH_P_IP && len(body) >= 20 && body[9] == unix.IPPROTO_UDP:
		return at("udp", 12, 16)
	case ether == unix.ETH_P_IP && len(body) >= 20:
		return at("packet", 12, 16)
	case ether == unix.ETH_P_IPV6 && len(body) >= 64 && body[6] == unix.IPPROTO_ICMPV6 && body[40] == 136:
		return at("answer", 48, 64)
	case ether == unix.ETH_P_IPV6 && len(body) >= 40 && body[6] == unix.IPPROTO_UDP:
		return at("udp", 8, 24)
	case ether == unix.ETH_P_IPV6 && len(body) >= 40:
		return at("packet", 8, 24)
	}
	return "", address
}

var (
	asker   = net.HardwareAddr{2, 0, 0, 0, 0x77, 1}
	asker4  = netip.MustParseAddr("10.1.254.1")
	asker6  = netip.MustParseAddr("fe80::77")
	solicit = netip.MustParseAddr("ff02::1:ff00:0").As16()
)

// question returns the frame that asks all neighbors for the MAC of an address.
func question(of netip.Addr) []byte {
	if of.Is4() {
		frame := append([]byte{255, 255, 255, 255, 255, 255}, asker...)
		frame = append(frame, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
		frame = append(append(frame, asker...), asker4.AsSlice()...)
		return append(append(frame, 0, 0, 0, 0, 0, 0), of.AsSlice()...)
	}
	group := solicit
	copy(group[13:], of.AsSlice()[13:])
	frame := append([]byte{0x33, 0x33, 0xff, group[13], group[14], group[15]}, asker...)
	icmp := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, of.AsSlice()...)
	icmp = append(append(icmp, 1, 1), asker...) // the source's link-layer address
	pseudo := append(append(asker6.AsSlice(), group[:]...), 0, 0, 0, byte(len(icmp)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	sum := 0
	for _, part := range [][]byte{pseudo, icmp} {
		for i := 0; i < len(part); i += 2 {
			sum += int(part[i])<<8 | int(part[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(sum))
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, 255)
	return append(append(append(frame, asker6.AsSlice()...), group[:]...), icmp...)
}

// ask asks each segment for each address. The owner must answer on its own segment.
func (l *fluxLab) ask(want map[string]int) (asked int) {
	l.t.Helper()
	for s, index := range l.segments {
		for _, a := range l.order {
			if err := unix.Sendto(l.socket, question(a), 0, &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
				l.t.Fatal(err)
			}
			asked++
			if l.segment[a] == s {
				want["answer "+a.String()]++
			}
		}
	}
	return asked
}

// senders returns a socket for each address, bound to it in its pod.
func (l *fluxLab) senders() map[netip.Addr]int {
	l.t.Helper()
	sockets := map[netip.Addr]int{}
	for pod := range l.pods {
		err := l.pods[pod].Do(func() error {
			for rail := range fluxRails {
				v4, v6 := fluxAddresses(pod, rail)
				for _, text := range []string{v4, v6} {
					a := netip.MustParsePrefix(text).Addr()
					family := unix.AF_INET
					if a.Is6() {
						family = unix.AF_INET6
					}
					fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
					if err != nil {
						return err
					}
					l.t.Cleanup(func() { _ = unix.Close(fd) })
					if err := unix.Bind(fd, sockaddr(a, 0)); err != nil {
						return fmt.Errorf("bind %s: %w", a, err)
					}
					sockets[a] = fd
				}
			}
			return nil
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
	return sockets
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: port}
}

// elsewhere are destinations beyond the gateway of the rails.
var elsewhere = []netip.Addr{netip.MustParseAddr("172.16.5.5"), netip.MustParseAddr("fd16::5")}

// send sends a packet from each address to each rail of the other pod, and beyond the
// gateway. Those to the same segment must arrive at the port of their source.
func (l *fluxLab) send(sockets map[netip.Addr]int, want map[string]int) (sent int) {
	for from, fd := range sockets {
		for _, to := range append(append([]netip.Addr{}, l.order...), elsewhere...) {
			_, known := l.owner[to]
			if to.Is4() != from.Is4() || known && l.of[to] == l.of[from] { // the latter stays in the pod
				continue
			}
			// A refusal is as bad as a wrong port where the packet is wanted, and it is missing then.
			_ = unix.Sendto(fd, []byte("rail"), 0, sockaddr(to, 4791))
			sent++
			if known && l.segment[from] == l.segment[to] {
				want["udp "+from.String()]++
			}
		}
	}
	return sent
}

// check asks and sends until total questions and packets have been tried. It returns how
// many, what came from a wrong port, and what is missing, after it has waited for patience.
func (l *fluxLab) check(total int, patience time.Duration) (tried int, wrong, missing []string) {
	l.t.Helper()
	l.mu.Lock()
	clear(l.heard)
	l.wrong = nil
	l.mu.Unlock()
	sockets, want := l.senders(), map[string]int{}
	for tried < total {
		tried += l.ask(want) + l.send(sockets, want)
		missing = l.await(want, patience)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return tried, l.wrong, missing
}

// await waits until everything that is wanted was heard and the wire is quiet, or for
// patience, and returns what is missing.
func (l *fluxLab) await(want map[string]int, patience time.Duration) (missing []string) {
	const quiet = 5 * time.Millisecond
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		missing = nil
		l.mu.Lock()
		for what, n := range want {
			if l.heard[what] < n {
				missing = append(missing, fmt.Sprintf("%s: %d of %d", what, l.heard[what], n))
			}
		}
		calm := time.Since(l.last) > quiet
		l.mu.Unlock()
		if len(missing) == 0 && calm || time.Now().After(deadline) {
			return missing
		}
	}
}

// about reports whether one of the texts has what.
func about(texts []string, what string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, what) })
}

func first(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d, such as %s", len(list), list[0])
}

// fluxTotal is the number of questions and packets of a test.
func fluxTotal() int {
	if need.Full() {
		return 10_000
	}
	return 1_000
}

// Two pods with eight rails in one subnet, with the host's strict filter for all interfaces:
// nothing leaves by another NIC, and nobody else answers. Then a rule is removed, to show that
// the check can fail.
func TestEachRailSendsAndAnswersForItsOwnAddressesOnly(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(fmt.Sprintf("%s/together=%v", plugin, together), func(t *testing.T) {
				t.Parallel()
				l := newFluxLab(t, plugin, "source", "1", together, map[string]any{"arp": "own"})
				tried, wrong, missing := l.check(fluxTotal(), 20*time.Second)
				t.Logf("%d questions and packets: %d wrong, %d missing", tried, len(wrong), len(missing))
				if len(wrong) > 0 || len(missing) > 0 {
					t.Fatalf("wrong: %s\nmissing: %s", first(wrong), first(missing))
				}
				for _, from := range []string{"10.1.3.10", "fd01::4:10"} {
					family := "-4"
					if strings.Contains(from, ":") {
						family = "-6"
					}
					l.pods[0].IP(family, "rule", "del", "from", from, "priority", "20000")
					_, wrong, missing = l.check(1, time.Second)
					if about(wrong, from) || !about(missing, "udp "+from) {
						t.Errorf("without the rule of %s: wrong: %s; missing: %s", from, first(wrong), first(missing))
					}
					l.pods[0].IP(family, "rule", "del", "from", from, "priority", "20001")
					if _, wrong, _ = l.check(1, time.Second); !about(wrong, "udp of "+from) {
						t.Errorf("without both rules of %s: wrong: %s", from, first(wrong))
					}
				}
			})
		}
	}
}

// Without one of the keys the same check finds what is wrong.
func TestRailsWithoutTheKeysAnswerAndSendForEachOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode   string
		more   map[string]any
		filter string // the strict one hides the wrong answers, where it can
		text   string
	}{
		"without arp":    {"source", nil, "0", "answer of 10.1."},
		"without source": {"none", map[string]any{"arp": "own"}, "1", "udp of 10.1."},
	} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/together=%v", name, together), func(t *testing.T) {
				t.Parallel()
				l := newFluxLab(t, "host-device", c.mode, c.filter, together, c.more)
				_, wrong, _ := l.check(1, time.Second)
				if !strings.Contains(strings.Join(wrong, "\n"), c.text) {
					t.Errorf("wrong: %s", first(wrong))
				}
			})
		}
	}
}
