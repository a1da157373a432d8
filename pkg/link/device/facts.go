package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// From linux/ethtool.h. Package unix has the other numbers of that file.
const (
	setOfStats    = 1  // ETH_SS_STATS
	nameLength    = 32 // ETH_GSTRING_LEN
	commandLength = 44 // struct ethtool_cmd
)

// maxStats bounds the number of statistics that a driver may report.
const maxStats = 1 << 16

// Driver has the facts that the driver of an interface reports through ethtool(8).
type Driver struct {
	Stats map[string]uint64 // output of `ethtool -S`, by the driver's own names
	Mbps  uint32            // the link's speed in megabit per second, 0 if unknown
}

// ReadDriver reads the facts from the driver of the interface with this name. The facts are empty
// if the driver has no statistics and no speed. The error wraps [link.ErrNotFound] if there is no
// such interface.
func ReadDriver(n *netns.Netns, name string) (Driver, error) {
	d := Driver{Stats: map[string]uint64{}}
	err := n.Do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		e := ethtool{socket: s, name: name}
		if d.Mbps, err = e.speed(); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		err = e.stats(d.Stats)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		return err
	})
	return d, failure.Wrap(link.IfNameGone(n, err, name), failure.Kernel, "ethtool of %s in netns %s", name, n.Path)
}

// ethtool makes ioctls (SIOCETHTOOL, netdevice(7)). Their arguments are structs of 32-bit fields in
// host byte order. The command is the first field.
type ethtool struct {
	socket int
	name   string
}

func (e ethtool) call(argument []byte) error {
	if len(e.name) >= unix.IFNAMSIZ {
		return unix.ENODEV
	}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&argument[0])}
	copy(request.name[:], e.name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(e.socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

func argument(size int, fields ...uint32) []byte {
	a := make([]byte, 0, size)
	for _, f := range fields {
		a = binary.NativeEndian.AppendUint32(a, f)
	}
	return a[:size]
}

func (e ethtool) speed() (uint32, error) {
	a := argument(commandLength, unix.ETHTOOL_GSET)
	if err := e.call(a); err != nil {
		return 0, err
	}
	mbps := uint32(binary.NativeEndian.Uint16(a[12:])) | uint32(binary.NativeEndian.Uint16(a[28:]))<<16
	if mbps == math.MaxUint32 || mbps == math.MaxUint16 { // SPEED_UNKNOWN, in 32 and in 16 bits
		mbps = 0
	}
	return mbps, nil
}

func (e ethtool) stats(into map[string]uint64) error {
	a := argument(20, unix.ETHTOOL_GSSET_INFO, 0, 1<<setOfStats, 0) // struct ethtool_sset_info
	if err := e.call(a); err != nil {
		return err
	}
	count := binary.NativeEndian.Uint32(a[16:])
	if count == 0 || binary.NativeEndian.Uint32(a[8:]) == 0 || count > maxStats {
		return nil
	}
	// The driver writes as many statistics as it has at that moment, so leave room for more.
	room := 2 * int(count)
	names := argument(12+room*nameLength, unix.ETHTOOL_GSTRINGS, setOfStats, count)
	values := argument(8+room*8, unix.ETHTOOL_GSTATS, count)
	if err := errors.Join(e.call(names), e.call(values)); err != nil {
		return err
	}
	for i := range int(min(count, binary.NativeEndian.Uint32(names[8:]), binary.NativeEndian.Uint32(values[4:]))) {
		name, _, _ := bytes.Cut(names[12+i*nameLength:][:nameLength], []byte{0})
		into[string(name)] = binary.NativeEndian.Uint64(values[8+i*8:])
	}
	return nil
}

// Hardware has the facts about an interface that its driver reports at little cost.
type Hardware struct {
	Mbps     uint32 `json:"mbps,omitempty"`     // the link's speed in megabit per second, 0 if unknown
	Firmware string `json:"firmware,omitempty"` // version of the interface's firmware, as its driver writes it
}

// driverInfoLength is the size of struct ethtool_drvinfo. Its field fw_version follows the fields
// cmd (4 bytes), driver and version (32 bytes each).
const (
	driverInfoLength = 196
	firmwareAt       = 4 + 2*nameLength
)

// ReadHardware reads the facts from the driver of the interface with this name. A fact is empty if
// the driver does not report it. The error wraps [link.ErrNotFound] if there is no such interface.
func ReadHardware(n *netns.Netns, name string) (Hardware, error) {
	var h Hardware
	err := n.Do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		e := ethtool{socket: s, name: name}
		if h.Mbps, err = e.speed(); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		info := argument(driverInfoLength, unix.ETHTOOL_GDRVINFO)
		if err = e.call(info); err == nil {
			version, _, _ := bytes.Cut(info[firmwareAt:][:nameLength], []byte{0})
			if h.Firmware = string(version); h.Firmware == "N/A" {
				h.Firmware = "" // some drivers report "N/A" if there is no version
			}
		}
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		return err
	})
	return h, failure.Wrap(link.IfNameGone(n, err, name), failure.Kernel, "ethtool of %s in netns %s", name, n.Path)
}
