package attacker

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// program returns a BPF program that returns a number: a new one, or one that
// it loaded before.
func program(kind, attach, flags uint32, returns int32) (fd int, err error) {
	var code [16]byte
	code[0] = 0xb7 // r0 = returns
	binary.NativeEndian.PutUint32(code[4:], uint32(returns))
	code[8] = 0x95 // exit
	license := []byte("GPL\x00")
	load := struct {
		kind, count           uint32
		code, license         uint64
		level, size           uint32
		log                   uint64
		version, flags        uint32
		name                  [16]byte
		index, expectedAttach uint32
		_                     [96]byte
	}{
		kind: kind, count: 2, code: uint64(uintptr(unsafe.Pointer(&code[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
		flags: flags, name: [16]byte{'e', 'v', 'i', 'l'}, expectedAttach: attach,
	}
	fd, err = bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&load), unsafe.Sizeof(load))
	runtime.KeepAlive(&code)
	runtime.KeepAlive(license)
	return fd, err
}

func bpf(command int, attributes unsafe.Pointer, size uintptr) (int, error) {
	fd, _, e := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attributes), size)
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

// withProgram loads a program for f: it exists as long as it is attached.
func withProgram(kind, attach, flags uint32, returns int32, f func(fd int) error) error {
	fd, err := program(kind, attach, flags, returns)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// verdicts of the programs: drop, or let pass.
const xdpDrop, xdpPass, tcPass, tcDrop = 1, 2, 0, 2

// withFragments is BPF_F_XDP_HAS_FRAGS, which a program on a veth with a large
// MTU needs.
const withFragments = 1 << 5

func (a *attacker) xdp(link target, flags uint32) error {
	return withProgram(unix.BPF_PROG_TYPE_XDP, unix.BPF_XDP, withFragments, xdpDrop+int32(a.IntN(2)), func(fd int) error {
		list := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
		list.AddChild(attribute(nl.IFLA_XDP_FD, uint32(fd)))
		list.AddChild(attribute(nl.IFLA_XDP_FLAGS, flags))
		return change(link.index, 0, 0, list)
	})
}

func (a *attacker) xdpGeneric(link target) error { return a.xdp(link, unix.XDP_FLAGS_SKB_MODE) }
func (a *attacker) xdpNative(link target) error  { return a.xdp(link, unix.XDP_FLAGS_DRV_MODE) }

// byLink attaches by a link, which ends with its last file descriptor: at the
// program's end, or sooner.
func (a *attacker) byLink(link target, fd int, attach, flags uint32) error {
	attr := struct {
		program, index, attach, flags uint32
		_                             [48]byte
	}{uint32(fd), uint32(link.index), attach, flags, [48]byte{}}
	held, err := bpf(unix.BPF_LINK_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err == nil {
		a.hold(held)
	}
	return err
}

func (a *attacker) xdpLink(link target) error {
	mode := []uint32{unix.XDP_FLAGS_SKB_MODE, unix.XDP_FLAGS_DRV_MODE}[a.IntN(2)]
	return withProgram(unix.BPF_PROG_TYPE_XDP, unix.BPF_XDP, withFragments, xdpDrop+int32(a.IntN(2)), func(fd int) error {
		return a.byLink(link, fd, unix.BPF_XDP, mode)
	})
}

func (a *attacker) tcx(link target) error {
	attach := []uint32{unix.BPF_TCX_INGRESS, unix.BPF_TCX_EGRESS}[a.IntN(2)]
	return withProgram(unix.BPF_PROG_TYPE_SCHED_CLS, attach, 0, tcDrop*int32(a.IntN(2)), func(fd int) error {
		attachment := struct {
			index, program, attach uint32
			_                      [40]byte
		}{index: uint32(link.index), program: uint32(fd), attach: attach}
		_, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attachment), unsafe.Sizeof(attachment))
		return err
	})
}

func (a *attacker) tcxLink(link target) error {
	attach := []uint32{unix.BPF_TCX_INGRESS, unix.BPF_TCX_EGRESS}[a.IntN(2)]
	return withProgram(unix.BPF_PROG_TYPE_SCHED_CLS, attach, 0, tcPass, func(fd int) error { return a.byLink(link, fd, attach, 0) })
}

// filters puts a filter on ingress.
func (a *attacker) filters(link target) error {
	return withProgram(unix.BPF_PROG_TYPE_SCHED_CLS, 0, 0, tcDrop, func(fd int) error {
		attrs := netlink.QdiscAttrs{LinkIndex: link.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
		if err := netlink.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "clsact"}); err != nil {
			return err
		}
		return netlink.FilterReplace(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: link.index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          fd, Name: "evil", DirectAction: true,
		})
	})
}

// discipline sets a queueing discipline.
func (a *attacker) discipline(link target) error {
	attrs := netlink.QdiscAttrs{LinkIndex: link.index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if a.IntN(2) == 0 {
		return netlink.QdiscReplace(&netlink.Tbf{QdiscAttrs: attrs, Rate: 1000, Limit: 10000, Buffer: 10000})
	}
	return netlink.QdiscReplace(netlink.NewHtb(attrs))
}
