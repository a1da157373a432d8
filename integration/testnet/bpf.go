package testnet

import (
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// From linux/bpf.h.
const (
	bpfProgLoad    = 5
	bpfProgAttach  = 8
	bpfProgQuery   = 16
	bpfLinkCreate  = 28
	progSchedCls   = 3
	progXDP        = 6
	attachXDP      = 37
	attachTCXIn    = 46
	attachTCXOut   = 47
	netlinkXDPFd   = 1 // IFLA_XDP_FD
	netlinkXDPFlag = 3 // IFLA_XDP_FLAGS
)

// Hooks are the ways in which [Netns.Attach] attaches a BPF program to a link.
var Hooks = []string{
	"xdp generic", "xdp native", "xdp generic by a bpf_link", "xdp native by a bpf_link",
	"tcx ingress", "tcx egress", "tcx ingress by a bpf_link", "tcx egress by a bpf_link",
}

func (n *Netns) bpf(command int, attr []byte) int {
	n.t.Helper()
	var r uintptr
	errno := unix.EAGAIN
	// The kernel stops checking a program (bpf_check) when a signal arrives, and the Go runtime sends signals.
	for try := 0; try < 100 && errno == unix.EAGAIN; try++ {
		r, _, errno = unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
	}
	if errno != 0 {
		n.t.Fatalf("bpf(%d): %v", command, errno)
	}
	return int(r)
}

func words(fields ...uint32) []byte {
	var b []byte
	for _, f := range fields {
		b = binary.NativeEndian.AppendUint32(b, f)
	}
	return b
}

func pointer(p *byte) []byte {
	return binary.NativeEndian.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(p))))
}

// load loads a program of two instructions: "return verdict".
func (n *Netns) load(kind, verdict uint32) int {
	n.t.Helper()
	return n.loadCode(kind, words(0xb7, verdict), words(0x95, 0)) // r0 = verdict; exit
}

// loadCode loads a program of these instructions.
func (n *Netns) loadCode(kind uint32, instructions ...[]byte) int {
	n.t.Helper()
	code := slices.Concat(instructions...)
	license := []byte("GPL\x00")
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&code[0])
	pins.Pin(&license[0])
	attr := append(words(kind, uint32(len(instructions))), append(pointer(&code[0]), pointer(&license[0])...)...)
	return n.bpf(bpfProgLoad, append(attr, make([]byte, 96)...))
}

// Attach attaches a program that drops every packet to a link of the namespace,
// in one of the ways of [Hooks]. The descriptor that holds the program stays
// open until the test ends, as in a living pod.
func (n *Netns) Attach(name, hook string) {
	n.t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		n.t.Fatal(err)
	}
	index, fd := uint32(l.Index), 0
	n.Inside(func() {
		switch hook {
		case "xdp generic", "xdp native":
			fd = n.load(progXDP, 1) // XDP_DROP
			flag := uint32(1 << 1)
			if hook == "xdp native" {
				flag = 1 << 2
			}
			n.netlinkXDP(index, uint32(fd), flag)
		case "xdp generic by a bpf_link", "xdp native by a bpf_link":
			flag := uint32(1 << 1)
			if hook == "xdp native by a bpf_link" {
				flag = 1 << 2
			}
			fd = n.bpf(bpfLinkCreate, words(uint32(n.load(progXDP, 1)), index, attachXDP, flag, 0, 0, 0, 0))
		case "tcx ingress", "tcx egress":
			fd = n.load(progSchedCls, 2) // TC_ACT_SHOT
			n.bpf(bpfProgAttach, words(index, uint32(fd), tcx(hook), 0, 0, 0, 0, 0))
		default:
			fd = n.bpf(bpfLinkCreate, words(uint32(n.load(progSchedCls, 2)), index, tcx(hook), 0, 0, 0, 0, 0))
		}
	})
	n.t.Cleanup(func() { _ = unix.Close(fd) })
}

func tcx(hook string) uint32 {
	if strings.HasPrefix(hook, "tcx ingress") {
		return attachTCXIn
	}
	return attachTCXOut
}

func (n *Netns) netlinkXDP(index, program, flag uint32) {
	n.t.Helper()
	nested := append(Attribute(netlinkXDPFd, words(program)), Attribute(netlinkXDPFlag, words(flag))...)
	if err := n.setLink(int(index), Attribute(unix.IFLA_XDP|unix.NLA_F_NESTED, nested)); err != nil {
		n.t.Fatalf("attach XDP: %v", err)
	}
}

// TCX returns the number of programs that are attached to a link by tcx, -1 if the
// kernel has no tcx (before Linux 6.6).
func (n *Netns) TCX(name string) int {
	n.t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		n.t.Fatal(err)
	}
	count := 0
	n.Inside(func() {
		for _, hook := range []uint32{attachTCXIn, attachTCXOut} {
			attr := append(words(uint32(l.Index), hook), make([]byte, 56)...)
			_, _, errno := unix.Syscall(unix.SYS_BPF, bpfProgQuery, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
			if errno == unix.EINVAL {
				count = -1
				return
			}
			if errno != 0 {
				n.t.Fatalf("query tcx programs: %v", errno)
			}
			count += int(binary.NativeEndian.Uint32(attr[24:]))
		}
	})
	return count
}
