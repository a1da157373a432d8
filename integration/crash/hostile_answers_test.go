package crash

import (
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// gift is the attachment that got a MAC from a plugin last: its NIC and its
// address. A NIC's MAC has no address until a pod has the NIC.
type gift struct {
	nic     int
	macvlan bool
	addr    string
	pod     *testnet.Netns
}

// others returns the other attachments that answer for the attachment's address with a
// MAC that a plugin gave. found maps MACs to the wires where they answered.
//
// Other MACs do not count: a pod gave them to its links, or the kernel to links
// that a pod made. A pod with CAP_NET_ADMIN can answer for any address of its
// networks in this way until the kernel has destroyed its netns, and no plugin
// can notice: the plugins free an address when the MAC that they gave with it
// is silent. A killed pod that had changed that MAC still answers with the new
// one, and on its other interfaces, because Linux answers on each for the
// addresses of all. For the same reason a MAC that was given with another
// address does not count.
func (l *lab) others(a *attachment, found map[string][]int) []gift {
	l.mu.Lock()
	defer l.mu.Unlock()
	var others []gift
	for mac, wires := range found {
		g, given := l.given[mac]
		// Pods know the NICs' MACs, and set them on other wires (attacker).
		there := given && (g.macvlan || slices.Contains(wires, g.nic))
		if mac != a.mac && there && (g.addr == "" || g.addr == a.addr) {
			others = append(others, g)
		}
	}
	return others
}

// onlyOnItsWire reports whether the attachment answers with its MAC on the wire of its
// NIC, and on no other.
func (a *attachment) onlyOnItsWire(found map[string][]int) bool {
	return slices.Equal(found[a.mac], []int{a.nic})
}

// asked is when it was asked who answers.
type asked struct {
	at        time.Time
	destroyed [modelNICs]int // how often the kernel had destroyed each NIC, with its pod
}

func (l *lab) ask() asked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return asked{time.Now(), l.destroyed}
}

// destroys reports whether the netns of the gift's pod had ended when it was asked, and the
// kernel destroys the NIC with it. A veth is a virtual link: its address is free when the
// pod netns has ended, though the link answers until the kernel has deleted it
// (docs/guide/limits.md).
func (l *lab) destroys(g gift, then asked) bool {
	for deadline := time.Now().Add(l.long(settleTime)); !g.macvlan; time.Sleep(20 * time.Millisecond) {
		l.mu.Lock()
		ended, destroyed := l.ended[g.pod], l.destroyed[g.nic] > then.destroyed[g.nic]
		l.mu.Unlock()
		if ended.IsZero() || ended.After(then.at) {
			return false
		}
		if destroyed {
			return true
		}
		if time.Now().After(deadline) {
			break
		}
	}
	return false
}

// killNetns ends the netns of a pod that has no process any more.
func (l *lab) killNetns(pod *testnet.Netns) {
	pod.Kill()
	l.netnsEnded(pod)
}

func (l *lab) netnsEnded(pod *testnet.Netns) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[pod] = time.Now()
}

func TestOnlyMACsThatPluginsGaveCountAsAnswers(t *testing.T) {
	const addr, mac = "10.60.0.1", "02:00:00:00:03:02"
	l := &lab{given: map[string]gift{
		mac:                 {nic: 2, addr: addr},
		"02:00:00:00:03:03": {nic: 3},
		"02:00:00:00:03:04": {nic: 4, addr: "10.60.0.4"},
		"02:00:00:00:03:05": {nic: 5, addr: addr},
		"7a:00:00:00:00:01": {nic: 6, macvlan: true, addr: addr},
		"7a:00:00:00:00:02": {nic: 6, macvlan: true, addr: "10.60.0.6"},
	}}
	a := &attachment{nic: 2, mac: mac, addr: addr}
	for _, c := range []struct {
		mac    string
		at     int
		counts bool
	}{
		{"02:66:66:00:00:01", 6, false}, // chosen by a pod
		{"02:66:66:00:00:01", 2, false}, // also on the attachment's wire
		{"02:00:00:00:03:03", 3, true},  // a NIC that has not been lent yet
		{"02:00:00:00:03:03", 6, false}, // chosen by a pod
		{"02:00:00:00:03:04", 4, false}, // given with another address
		{"02:00:00:00:03:05", 5, true},  // its pod had the address
		{"7a:00:00:00:00:01", 6, true},  // a macvlan that had the address
		{"7a:00:00:00:00:02", 6, false}, // a macvlan that had another
	} {
		if got := l.others(a, map[string][]int{mac: {2}, c.mac: {c.at}}); len(got) != 0 != c.counts {
			t.Errorf("%s on the wire of NIC %d counts: %v", c.mac, c.at, got)
		}
	}
	for _, found := range []map[string][]int{{}, {mac: {2, 3}}, {mac: {3}}, {"02:66:66:00:00:01": {2}}} { // it must answer, on its wire only
		if a.onlyOnItsWire(found) {
			t.Errorf("%v does not count", found)
		}
	}
}
