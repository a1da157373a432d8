package attacker

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool calls ethtool's ioctl with a struct of 32-bit numbers, the command
// first. The kernel writes its answer to data.
func ethtool(name string, data []uint32) error {
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&data[0])
	return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(s int) error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); e != 0 {
			return e
		}
		return nil
	})
}

// features changes some of the features that a pod may change.
func (a *attacker) features(link target) error {
	const blocks = 2 // of 32 features
	get := make([]uint32, 2+4*blocks)
	get[0], get[1] = unix.ETHTOOL_GFEATURES, blocks
	if err := ethtool(link.name, get); err != nil {
		return err
	}
	set := make([]uint32, 2+2*blocks) // of each block: which, and what
	set[0], set[1] = unix.ETHTOOL_SFEATURES, blocks
	for i := range blocks {
		available, never := get[2+4*i], get[2+4*i+3]
		set[2+2*i] = available &^ never & a.Uint32()
		set[2+2*i+1] = a.Uint32()
	}
	return ethtool(link.name, set)
}

// queues sets rings, channels or coalescing, if the driver has them.
func (a *attacker) queues(link target) error {
	pair := [][3]uint32{ // to get, to set, and how long
		{unix.ETHTOOL_GRINGPARAM, unix.ETHTOOL_SRINGPARAM, 9},
		{unix.ETHTOOL_GCHANNELS, unix.ETHTOOL_SCHANNELS, 9},
		{unix.ETHTOOL_GCOALESCE, unix.ETHTOOL_SCOALESCE, 23},
		{unix.ETHTOOL_GPAUSEPARAM, unix.ETHTOOL_SPAUSEPARAM, 4},
		{unix.ETHTOOL_GPFLAGS, unix.ETHTOOL_SPFLAGS, 2},
	}
	p := pair[a.IntN(len(pair))]
	data := make([]uint32, p[2])
	data[0] = p[0]
	if err := ethtool(link.name, data); err != nil {
		return err
	}
	data[0] = p[1]
	if i := 1 + a.IntN(len(data)-1); data[i] > 0 {
		data[i] = max(1, data[i]/2)
	}
	return ethtool(link.name, data)
}

func (a *attacker) write(link target, file, value string) error {
	return os.WriteFile(filepath.Join("/sys/class/net", link.name, file), []byte(value), 0)
}

// napi sets how the kernel polls the interface's queues.
func (a *attacker) napi(link target) error {
	switch a.IntN(3) {
	case 0:
		return a.write(link, "gro_flush_timeout", fmt.Sprint(a.IntN(100000)))
	case 1:
		return a.write(link, "napi_defer_hard_irqs", fmt.Sprint(a.IntN(100)))
	}
	return a.write(link, "threaded", fmt.Sprint(a.IntN(2)))
}

// steering sets which processors see the interface's packets.
func (a *attacker) steering(link target) error {
	switch a.IntN(3) {
	case 0:
		return a.write(link, "queues/rx-0/rps_cpus", fmt.Sprint(a.IntN(4)))
	case 1:
		return a.write(link, "queues/rx-0/rps_flow_cnt", fmt.Sprint(64<<a.IntN(4)))
	}
	return a.write(link, "queues/tx-0/xps_cpus", fmt.Sprint(a.IntN(4)))
}

// packetSockets opens sockets that make the interface promiscuous, and closes
// some of them.
func (a *attacker) packetSockets(link target) error {
	protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return err
	}
	a.hold(s)
	mode := []uint16{unix.PACKET_MR_PROMISC, unix.PACKET_MR_ALLMULTI}[a.IntN(2)]
	return unix.SetsockoptPacketMreq(s, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{Ifindex: int32(link.index), Type: mode})
}

// hold keeps a file descriptor open, up to a number of them.
func (a *attacker) hold(fd int) {
	if a.keep = append(a.keep, fd); len(a.keep) > 20 {
		_ = unix.Close(a.keep[0])
		a.keep = a.keep[1:]
	}
}

// flood changes the alias so often that the receive buffers of listeners overflow.
func (a *attacker) flood(link target) error {
	for i := range 400 {
		if err := a.alias(link); err != nil {
			return err
		}
		if i%20 == 0 {
			_ = a.rename(link) // the mutation has been reported already
		}
	}
	return nil
}
