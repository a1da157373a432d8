package testnet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// Announced listens on an interface, which may be down, until the test ends. The
// function that it returns lists what neighbors have announced there without being
// asked, by gratuitous ARP or unsolicited neighbor advertisements: "ADDRESS is at MAC".
func (n *Netns) Announced(name string) func() []string {
	n.t.Helper()
	return n.Capture(name, announcement)
}

// Capture listens on an interface, which may be down, until the test ends. The function that it
// returns lists the texts that text has returned for the Ethernet frames, without empty ones.
func (n *Netns) Capture(name string, text func(frame []byte) string) func() []string {
	n.t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		n.t.Fatal(err)
	}
	var socket *os.File
	err = n.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		socket = os.NewFile(uintptr(fd), "packet")
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index})
	})
	if err != nil {
		n.t.Fatal(err)
	}
	var mu sync.Mutex
	var heard []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for frame := make([]byte, 1<<16); ; {
			size, err := socket.Read(frame)
			if errors.Is(err, unix.ENETDOWN) {
				continue // told once, each time the interface goes down
			}
			if err != nil {
				return
			}
			if line := text(frame[:size]); line != "" {
				mu.Lock()
				heard = append(heard, line)
				mu.Unlock()
			}
		}
	}()
	n.t.Cleanup(func() { _ = socket.Close(); <-done })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(heard)
	}
}

// announcement returns what an Ethernet frame announces, "" for nothing.
func announcement(frame []byte) string {
	if len(frame) < 14 {
		return ""
	}
	body := frame[14:]
	say := func(address, mac []byte) string {
		ip, _ := netip.AddrFromSlice(address) // its length is right
		return ip.String() + " is at " + net.HardwareAddr(mac).String()
	}
	switch kind := uint16(frame[12])<<8 | uint16(frame[13]); {
	case kind == unix.ETH_P_ARP && len(body) >= 28 && string(body[14:18]) == string(body[24:28]):
		return say(body[14:18], body[8:14])
	case kind == unix.ETH_P_IPV6 && len(body) >= 72 && body[6] == unix.IPPROTO_ICMPV6 && body[40] == 136 && body[44]&0x40 == 0 && body[64] == 2:
		return say(body[48:64], body[66:72]) // not solicited, with the target's address
	}
	return ""
}
