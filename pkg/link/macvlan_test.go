package link_test

import (
	"net"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// twoMacvlans makes a NIC with a macvlan in each of two pods; the first is up.
func twoMacvlans(t *testing.T) (host *testnet.Netns, index int, pods [2]*testnet.Netns) {
	t.Helper()
	r := newRail(t, "ens1")
	index = byName(t, r.host, "ens1").Index
	for i, name := range []string{"pod1", "pod2"} {
		pods[i] = testnet.NewNetns(t, name)
		r.host.IP("link", "add", "net1", "link", "ens1", "netns", pods[i].Name, "type", "macvlan", "mode", "bridge")
	}
	r.host.IP("link", "set", "ens1", "up")
	pods[0].IP("link", "set", "net1", "up")
	return r.host, index, pods
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

// A pod may write any address into the filter lists of its macvlan, and so of the NIC
// below it, but no macvlan has that address thereby.
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
	if links, err := host.Links(); err != nil || len(links) != 2 {
		t.Errorf("the host has %v, %v", links, err)
	}
}

// packetUnicast has a packet socket of the pod receive the frames for mac.
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

// A pod that changes its filter lists all the time makes no macvlan of another invisible.
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
