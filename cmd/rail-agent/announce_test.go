package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// plug sets the far end of a NIC's cable up or down.
func (l *lab) plug(nic, state string) {
	l.t.Helper()
	l.wire.IP("link", "set", nic+"-sw", state)
}

func TestAgentAnnouncesAddressesWhenTheCarrierFirstComes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ plugin, agent string }{
		{"host-device", "before ADD"}, {"macvlan", "before ADD"}, {"host-device", "after ADD"},
	} {
		t.Run(c.plugin+", agent started "+c.agent, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.node.NIC("ens1", l.wire)
			l.plug("ens1", "down")
			pod := testnet.NewNetns(t, "pod")
			var a *running
			if c.agent == "before ADD" {
				a = l.start()
			}
			l.node.MustRun(l.call(c.plugin, "ADD", "ens1", pod, "net1"))
			if c.agent == "after ADD" {
				a = l.start()
			}
			r := l.records()[0]
			if r.Link == nil || r.Link.Up || r.Link.WaitedMS != 0 {
				t.Fatalf("link in the record: %+v", r.Link)
			}
			heard := l.wire.Announced("ens1-sw")
			want := strings.Split(r.Addresses[0], "/")[0] + " is at " + r.MAC
			if n, lines := a.metric("rail_cni_link_up"); c.plugin == "host-device" && (n != 0 || lines != 1) {
				t.Errorf("rail_cni_link_up is %v in %d lines", n, lines)
			}
			time.Sleep(500 * time.Millisecond) // the carrier is late
			l.plug("ens1", "up")
			await(t, "the announcement", 30*time.Second, func() bool { return slices.Contains(heard(), want) })
			await(t, "the log entry", 10*time.Second, func() bool { return len(a.said("carrier came after ADD")) == 1 })
			if n, lines := a.metric("rail_cni_link_up"); c.plugin == "host-device" && (n != 1 || lines != 1) {
				t.Errorf("rail_cni_link_up is %v in %d lines", n, lines)
			}
			if n, lines := a.metric("rail_cni_link_wait_seconds"); c.plugin == "host-device" && (n != 0 || lines != 1) {
				t.Errorf("rail_cni_link_wait_seconds is %v in %d lines", n, lines)
			}
			// After a flap the holder is the same.
			l.plug("ens1", "down")
			l.plug("ens1", "up")
			time.Sleep(700 * time.Millisecond)
			if n := len(a.said("carrier came after ADD")); n != 1 {
				t.Errorf("it announced %d times", n)
			}
			l.node.MustRun(l.call(c.plugin, "DEL", "ens1", pod, "net1"))
		})
	}
}

// TestAgentAnnouncesOnlyWhatADDGave checks that root in a pod cannot choose the addresses or the
// MAC that the agent announces.
func TestAgentAnnouncesOnlyWhatADDGave(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	l.node.NIC("ens2", l.wire)
	l.plug("ens1", "down")
	l.plug("ens2", "down")
	l.start()
	changed, innocent := testnet.NewNetns(t, "pod"), testnet.NewNetns(t, "pod")
	l.node.MustRun(l.call("host-device", "ADD", "ens1", changed, "net1"))
	l.node.MustRun(l.call("host-device", "ADD", "ens2", innocent, "net1"))
	const chosen = "02:00:00:00:06:66"
	changed.IP("link", "set", "net1", "address", chosen)
	changed.IP("addr", "add", "10.9.0.66/24", "dev", "net1")
	innocent.IP("addr", "add", "10.9.0.66/24", "dev", "net1")
	byPod, byInnocent := l.wire.Announced("ens1-sw"), l.wire.Announced("ens2-sw")
	for _, pod := range []*testnet.Netns{changed, innocent} {
		pod.Sysctl("ipv4/conf/net1/arp_notify", "0")
	}
	l.plug("ens1", "up")
	l.plug("ens2", "up")
	await(t, "the other pod's announcement", 30*time.Second, func() bool {
		return slices.ContainsFunc(byInnocent(), func(s string) bool { return strings.HasPrefix(s, "10.9.0.") })
	})
	time.Sleep(700 * time.Millisecond)
	for _, s := range append(byPod(), byInnocent()...) {
		if strings.HasPrefix(s, "10.9.0.") && (strings.Contains(s, chosen) || strings.HasPrefix(s, "10.9.0.66 ")) {
			t.Errorf("announced: %s", s)
		}
	}
}
