package crash

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// innocent is the life of a pod that attacks nothing. It must get what it would
// get on a node without attackers.
func (l *lab) innocent(worker uint64, number int) {
	r := rand.New(rand.NewPCG(seed, 100*(worker+1)+uint64(number)<<16))
	nic, ok := modelNICs-1-r.IntN(masters), true
	if r.IntN(3) > 0 {
		nic, ok = l.take(r)
	}
	if !ok {
		time.Sleep(20 * time.Millisecond)
		return
	}
	a := l.newAttachment(fmt.Sprintf("innocent%d-%d", worker, number), "net1", nic)
	a.pod = l.newPod()
	l.count("innocent pods", 1)
	l.admit(a)
	defer l.dismiss(a.ContainerID)
	switch err := l.patiently(func() error { return l.add(a) }); {
	case err != nil && strings.Contains(err.Error(), numbersExchanged):
		l.count("ADDs in which pods exchanged uverbs numbers", 1)
	case err != nil:
		l.violation(nil, "ADD of %s: %v", a, err)
	default:
		l.live(a, r)
	}
	if err := l.patiently(func() error { return l.del(a, a.path()) }); err != nil {
		l.violation(nil, "DEL of %s: %v", a, err)
		a.pod.Kill() // from here on any sweep may end it
	} else {
		defer a.pod.Kill()
	}
	if l.recorded(a.Key) {
		l.violation(nil, "%s is still recorded after its end", a)
	}
	l.returned(a, nil)
}

// numbersExchanged is in the error of an ADD during which another RDMA device
// was moved without rail-cni's lock. A pod can do that, and no plugin can
// prevent it (docs/guide/limits.md).
const numbersExchanged = "something that does not take rail-cni's lock"

// live checks everything that the pod was given, for a while.
func (l *lab) live(a *attachment, r *rand.Rand) {
	l.create(a, true)
	a.clean()
	a.answers()
	pause(r, 400*time.Millisecond, func() bool { return true })
	err := l.patiently(func() error {
		_, err := l.call("CHECK", a, a.path(), map[string]any{"prevResult": json.RawMessage(a.result)})
		return err
	})
	if err != nil {
		l.violation(nil, "CHECK of %s: %v", a, err)
	}
	a.clean()
	a.answers()
}

// patiently repeats a call that asks for a retry, and records the slowest.
func (l *lab) patiently(call func() error) error {
	began := time.Now()
	err := call()
	for range 3 {
		if err == nil || cnierr.Code(err) != cnierr.TryAgain {
			break
		}
		l.count("calls made again", 1)
		err = call()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, time.Since(began))
	return err
}

// clean compares the interface with that of the first pod that had the NIC.
func (a *attachment) clean() {
	for deadline := time.Now().Add(a.l.long(settleTime)); ; time.Sleep(20 * time.Millisecond) {
		now := a.dump()
		if now == a.l.lent[a.nic] {
			return
		}
		if time.Now().After(deadline) {
			if lacksDefaultGIDs(now, a.l.lent[a.nic]) {
				a.l.count(lacking, 1)
				return
			}
			a.l.violation(nil, "%s is not as it was for its first pod:\n%s", a, differ(a.l.lent[a.nic], now))
			return
		}
	}
}

// answers sends a packet each way, and checks that no one else answers for the
// pod's address, on any wire, with a MAC that a plugin gave.
func (a *attachment) answers() {
	if err := echo(a.pod, a.addr, a.l.wires[a.nic], station, a.l.long(settleTime)); err != nil {
		a.l.violation(nil, "%s, %s, does not reach its station: %v\n%s", a, a.addr, err, a.l.wires[a.nic].IP("addr"))
	}
	if err := echo(a.l.wires[a.nic], station, a.pod, a.addr, a.l.long(settleTime)); err != nil {
		a.l.violation(nil, "%s, %s, is not reached by its station: %v", a, a.addr, err)
	}
	then := a.l.ask()
	var all sync.WaitGroup
	var mu sync.Mutex
	found := map[string][]int{} // the wires on which a MAC answered
	for nic, wire := range a.l.wires {
		all.Go(func() {
			// An error is a wire whose NIC is gone or down: no one answers
			// there.
			long := time.Duration(0)
			if nic == a.nic {
				long = a.l.long(settleTime)
			}
			macs, err := who(wire, a.l.cable(nic), a.addr, long)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && nic == a.nic {
				a.l.violation(nil, "nobody can be asked for the address of %s: %v", a, err)
			}
			for _, mac := range macs {
				found[mac] = append(found[mac], nic)
			}
		})
	}
	all.Wait()
	another := func(g gift) bool { return !a.l.destroys(g, then) }
	if !a.onlyOnItsWire(found) || slices.ContainsFunc(a.l.others(a, found), another) {
		a.l.violation(nil, "%s has %s at %s, for which these answer, each on the wires of these NICs: %v", a, a.addr, a.mac, found)
	}
}

// echo sends a packet from one address to the other until it is answered, or
// until long has passed.
func echo(from *testnet.Netns, fromAddr string, to *testnet.Netns, toAddr string, long time.Duration) error {
	server, err := listen(to, toAddr)
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := listen(from, fromAddr)
	if err != nil {
		return err
	}
	defer client.Close()
	go func() {
		b := make([]byte, 64)
		for {
			n, peer, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:n], peer) // the sender asks again
		}
	}()
	b := make([]byte, 64)
	for deadline := time.Now().Add(long); ; {
		if _, err = client.WriteTo([]byte("who is there"), server.LocalAddr()); err == nil {
			_ = client.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			if _, _, err = client.ReadFrom(b); err == nil {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func listen(n *testnet.Netns, addr string) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		var err error
		c, err = net.ListenPacket("udp4", addr+":0")
		return err
	})
	return c, err
}

// who asks by ARP for an address, and lists the MACs that answer. It waits long
// for the first.
func who(n *testnet.Netns, name, addr string, long time.Duration) (macs []string, err error) {
	arp := int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP)))
	var s int
	if err := n.Do(func() (err error) {
		s, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, arp)
		return err
	}); err != nil {
		return nil, err
	}
	defer unix.Close(s)
	var index int
	if index, err = n.Index(name); err != nil {
		return nil, err
	}
	everyone := &unix.SockaddrLinklayer{Protocol: uint16(arp), Ifindex: index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	target := netip.MustParseAddr(addr).As4()
	question := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // a probe (RFC 5227), of nobody
	question = append(question, target[:]...)
	if err := unix.Bind(s, &unix.SockaddrLinklayer{Protocol: uint16(arp), Ifindex: index}); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000}); err != nil {
		return nil, err
	}
	const pause = 300 * time.Millisecond
	began, asked := time.Now(), 0
	b := make([]byte, 64)
	for since := time.Duration(0); since < pause || len(macs) == 0 && since < long; since = time.Since(began) {
		if asked < 3+int(since/pause) {
			asked++
			if err := unix.Sendto(s, question, 0, everyone); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return nil, err
			}
		}
		size, _, err := unix.Recvfrom(s, b, 0)
		if err != nil || size < 28 || b[7] != 2 || !bytes.Equal(b[14:18], target[:]) {
			continue
		}
		if mac := net.HardwareAddr(b[8:14]).String(); !slices.Contains(macs, mac) {
			macs = append(macs, mac)
		}
	}
	return macs, nil
}
