package link_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestCreateMacvlan(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0x17}
	for _, c := range []struct {
		name  string
		given func(r *testnet.Rail)
		m     link.Macvlan
		shown []string
		err   error
	}{
		{"plain", nil, link.Macvlan{Name: "net1", Mode: "bridge"}, []string{"mtu 9000", "macvlan mode bridge", "state DOWN"}, nil},
		{
			"with everything", nil,
			link.Macvlan{Name: "net1", Mode: "vepa", MTU: 1400, MAC: mac, BCQueueLen: 77},
			[]string{"mtu 1400", "mode vepa", "02:00:00:00:00:17", "bcqueuelen 77"},
			nil,
		},
		{"private", nil, link.Macvlan{Name: "net1", Mode: "private"}, []string{"mode private"}, nil},
		{"passthru", nil, link.Macvlan{Name: "net1", Mode: "passthru"}, []string{"mode passthru"}, nil},
		{
			"its name exists on the host", func(r *testnet.Rail) { r.Host.IP("link", "add", "net1", "type", "ifb") },
			link.Macvlan{Name: "net1", Mode: "bridge"},
			[]string{"macvlan mode bridge"},
			nil,
		},
		{
			"its name exists in the pod", func(r *testnet.Rail) { r.Pod.IP("link", "add", "net1", "type", "ifb") },
			link.Macvlan{Name: "net1", Mode: "bridge"},
			nil, unix.EEXIST,
		},
		{
			"its name is an altname in the pod", func(r *testnet.Rail) {
				r.Pod.IP("link", "add", "other", "type", "ifb")
				r.Pod.IP("link", "property", "add", "dev", "other", "altname", "net1")
			},
			link.Macvlan{Name: "net1", Mode: "bridge"},
			nil, unix.EEXIST,
		},
		{"MTU too large", nil, link.Macvlan{Name: "net1", Mode: "bridge", MTU: 9001}, nil, unix.EINVAL},
		{"a group's MAC", nil, link.Macvlan{Name: "net1", Mode: "bridge", MAC: net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}}, nil, unix.EADDRNOTAVAIL},
		{
			"the NIC is a bridge's port", func(r *testnet.Rail) {
				r.Host.IP("link", "add", "br0", "type", "bridge")
				r.Host.IP("link", "set", "ens1", "master", "br0")
			},
			link.Macvlan{Name: "net1", Mode: "bridge"},
			nil, unix.EBUSY,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testnet.NewRail(t, "ens1")
			if c.given != nil {
				c.given(r)
			}
			host, pod := fmt.Sprint(names(t, r.Host)), fmt.Sprint(names(t, r.Pod))
			m := c.m
			m.Master = r.Host.Link("ens1").Index
			heard := listen(t, r.Host)
			err := link.CreateMacvlan(r.Host.Netns, r.Pod.Netns, m)
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			for _, name := range heard() {
				if name != "ens1" {
					t.Errorf("listeners on the host heard of %s", name)
				}
			}
			r.Host.IP("link", "del", "last-word")
			if now := fmt.Sprint(names(t, r.Host)); now != host {
				t.Errorf("the host has %s, had %s", now, host)
			}
			if c.err != nil {
				if now := fmt.Sprint(names(t, r.Pod)); now != pod {
					t.Errorf("the pod has %s, had %s", now, pod)
				}
				return
			}
			shown := r.Pod.IP("-d", "link", "show", "net1")
			for _, want := range c.shown {
				if !strings.Contains(shown, want) {
					t.Errorf("no %q in\n%s", want, shown)
				}
			}
			for range 2 { // a missing one is not an error
				if err := link.Delete(r.Pod.Netns, byNameOr(r.Pod, "net1")); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func byNameOr(n *testnet.Netns, name string) int {
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		return 4711
	}
	return l.Index
}

// twoMacvlans makes a NIC with a macvlan in each of two pods. Only the first macvlan is up.
func twoMacvlans(t *testing.T) (host *testnet.Netns, index int, pods [2]*testnet.Netns) {
	t.Helper()
	r := testnet.NewRail(t, "ens1")
	index = r.Host.Link("ens1").Index
	for i, name := range []string{"pod1", "pod2"} {
		pods[i] = testnet.NewNetns(t, name)
		r.Host.IP("link", "add", "net1", "link", "ens1", "netns", pods[i].Name, "type", "macvlan", "mode", "bridge")
	}
	r.Host.IP("link", "set", "ens1", "up")
	pods[0].IP("link", "set", "net1", "up")
	return r.Host, index, pods
}

const hiddenMAC = "02:00:00:00:00:99"

func macvlanIsUp(t *testing.T, probe *link.Probe, host *testnet.Netns, index int) bool {
	t.Helper()
	mac, err := net.ParseMAC(hiddenMAC)
	if err != nil {
		t.Fatal(err)
	}
	up, err := probe.MacvlanIsUp(host.Netns, index, mac)
	if err != nil {
		t.Error(err)
	}
	return up
}

// A pod may write any address into the filter lists of its macvlan, and so into the lists of the
// NIC below it. That does not mean that a macvlan has the address.
func TestOnlyAMacvlanThatIsUpCounts(t *testing.T) {
	host, index, pods := twoMacvlans(t)
	var probe link.Probe
	defer probe.Close()
	up := func(want bool, why string) {
		t.Helper()
		if got := macvlanIsUp(t, &probe, host, index); got != want {
			t.Errorf("%s: %v", why, got)
		}
	}
	up(false, "nothing has the MAC")
	pods[0].IP("maddress", "add", hiddenMAC, "dev", "net1")
	up(false, "a multicast list has it")
	unicast := packetUnicast(t, pods[0], hiddenMAC)
	up(false, "both lists have it")
	pods[1].IP("link", "set", "net1", "address", hiddenMAC, "up")
	up(true, "a macvlan and both lists have it")
	pods[0].IP("maddress", "del", hiddenMAC, "dev", "net1")
	_ = unix.Close(unicast)
	up(true, "a macvlan has it")
	pods[1].IP("link", "set", "net1", "down")
	up(false, "the macvlan is down")
	if links, err := link.Links(host.Netns); err != nil || len(links) != 2 {
		t.Errorf("the host has %v, %v", links, err)
	}
}

// packetUnicast makes a packet socket of the pod receive the frames for mac.
func packetUnicast(t *testing.T, pod *testnet.Netns, mac string) (fd int) {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	pod.Inside(func() {
		nic, err := net.InterfaceByName("net1")
		if err != nil {
			t.Error(err)
			return
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Error(err)
			return
		}
		m := unix.PacketMreq{Ifindex: int32(nic.Index), Type: unix.PACKET_MR_UNICAST, Alen: 6}
		copy(m.Address[:], hw)
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
			t.Error(err)
		}
	})
	return fd
}

// A pod that changes its filter lists all the time must not hide another pod's macvlan.
func TestMacvlanIsUpWhateverAnotherPodDoesToTheFilterLists(t *testing.T) {
	host, index, pods := twoMacvlans(t)
	pods[1].IP("link", "set", "net1", "address", hiddenMAC, "up")
	var s int
	pods[0].Inside(func() {
		var err error
		if s, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Error(err)
		}
	})
	defer unix.Close(s)
	var request [40]byte // struct ifreq: the name, and a struct sockaddr with the address
	copy(request[:], "net1")
	mac, err := net.ParseMAC(hiddenMAC)
	if err != nil {
		t.Fatal(err)
	}
	copy(request[18:], mac)
	var stop atomic.Bool
	toggled := make(chan int)
	go func() {
		n := 0
		for ; !stop.Load(); n++ {
			for _, op := range []uintptr{unix.SIOCADDMULTI, unix.SIOCDELMULTI} {
				if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), op, uintptr(unsafe.Pointer(&request))); e != 0 {
					t.Error(e)
					stop.Store(true)
				}
			}
		}
		toggled <- n
	}()
	var probe link.Probe
	defer probe.Close()
	for range 50 {
		if !macvlanIsUp(t, &probe, host, index) {
			t.Error("it is up, and was not seen")
			break
		}
	}
	stop.Store(true)
	if n := <-toggled; n < 50 {
		t.Errorf("the lists changed %d times only", n)
	}
}
