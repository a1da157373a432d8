package attacker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// device is an RDMA device of the attacker's namespace.
type device struct {
	name  string
	index uint32
}

// errNoDevice: the namespace has no RDMA device now.
var errNoDevice = errors.New("no RDMA device")

// nldev makes a request of the family NETLINK_RDMA (RDMA_NLDEV_CMD_…).
func nldev(command, flags int, attributes ...*nl.RtAttr) ([][]byte, error) {
	r := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|command, flags|unix.NLM_F_ACK)
	for _, a := range attributes {
		r.AddData(a)
	}
	return r.Execute(unix.NETLINK_RDMA, 0)
}

// devices lists the RDMA devices of the thread's namespace.
func devices() (found []device) {
	messages, _ := nldev(nl.RDMA_NLDEV_CMD_GET, unix.NLM_F_DUMP) // messages before an error count
	for _, m := range messages {
		attributes, err := nl.ParseRouteAttr(m)
		if err != nil {
			continue
		}
		var d device
		for _, attr := range attributes {
			switch {
			case attr.Attr.Type == nl.RDMA_NLDEV_ATTR_DEV_INDEX && len(attr.Value) == 4:
				d.index = binary.NativeEndian.Uint32(attr.Value)
			case attr.Attr.Type == nl.RDMA_NLDEV_ATTR_DEV_NAME:
				d.name = string(bytes.TrimRight(attr.Value, "\x00"))
			}
		}
		found = append(found, d)
	}
	return found
}

// device returns one of the RDMA devices.
func (a *attacker) device() (device, error) {
	all := devices()
	if len(all) == 0 {
		return device{}, errNoDevice
	}
	return all[a.IntN(len(all))], nil
}

// set changes an RDMA device.
func (d device) set(attribute *nl.RtAttr) error {
	_, err := nldev(nl.RDMA_NLDEV_CMD_SET, 0, nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, binary.NativeEndian.AppendUint32(nil, d.index)), attribute)
	return err
}

func (d device) rename(name string) error { return d.set(text(nl.RDMA_NLDEV_ATTR_DEV_NAME, name)) }

func (d device) move(to *os.File) error {
	return d.set(attribute(nl.RDMA_NLDEV_NET_NS_FD, uint32(to.Fd())))
}

// deviceName returns a name for an RDMA device: that of another one of the
// host, one that the plugins may use temporarily, or any.
func (a *attacker) deviceName() string {
	return []string{fmt.Sprintf("mlx5_%d", a.IntN(16)), fmt.Sprintf("rail-%d", a.IntN(16)), a.word(1 + a.IntN(62)), "..", "mlx5_%d"}[a.IntN(5)]
}

func (a *attacker) deviceRename(target) error {
	d, err := a.device()
	if err != nil {
		return err
	}
	return d.rename(a.deviceName())
}

// deviceExchange exchanges the names of two RDMA devices.
func (a *attacker) deviceExchange(target) error {
	all := devices()
	if len(all) < 2 {
		return errNoDevice
	}
	a.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	one, other := all[0], all[1]
	aside := "aside" + a.word(8) // another pod may have one
	return errors.Join(one.rename(aside), other.rename(one.name), one.rename(other.name))
}

// deviceNested moves an RDMA device to a namespace of its own, and brings it
// back with another name.
func (a *attacker) deviceNested(target) error {
	d, err := a.device()
	if err != nil {
		return err
	}
	pause, name := time.Duration(a.IntN(300))*time.Millisecond, a.deviceName()
	return inNested(func(inside *os.File) error {
		if err := a.onGround(func() error { return d.move(inside) }); err != nil {
			return err
		}
		time.Sleep(pause)
		_ = d.rename(name) // or it keeps its own
		return d.move(a.ground)
	})
}

// deviceHidden moves an RDMA device, and sometimes an interface too, to a
// namespace that keeps them for some seconds and then ends with them.
func (a *attacker) deviceHidden(link target) error {
	d, err := a.device()
	if err != nil {
		return err
	}
	both := a.IntN(2) == 0
	return a.hide(func(inside *os.File) error {
		if both {
			_ = a.fromGround(link, inside) // some kinds of interface cannot move
		}
		return a.onGround(func() error { return d.move(inside) })
	}, func() { _ = up(link.index) })
}

// hideBySocket moves an interface or an RDMA device to a namespace without a path or
// process, which only a socket keeps alive.
func (a *attacker) hideBySocket(link target) error {
	d, err := a.device()
	rdma := err == nil && a.Plain && a.IntN(2) == 0
	sockets := make(chan int, 1)
	err = inNested(func(inside *os.File) error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		sockets <- s
		if rdma {
			return a.onGround(func() error { return d.move(inside) })
		}
		return a.fromGround(link, inside)
	})
	select {
	case s := <-sockets:
		a.hold(s)
	default:
	}
	return err
}

// mode sets the RDMA mode of the machine, which the kernel refuses as long as
// there are other namespaces.
func (a *attacker) mode(target) error {
	_, err := nldev(nl.RDMA_NLDEV_CMD_SYS_SET, 0, nl.NewRtAttr(nl.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, []byte{1}))
	return err
}

// openAny opens the first char device that the pod may open, beginning at a
// random one.
func (a *attacker) openAny(pattern string) (*os.File, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		return nil, errNoDevice
	}
	first := a.IntN(len(paths))
	for i := range paths {
		var f *os.File
		if f, err = os.OpenFile(paths[(first+i)%len(paths)], os.O_RDWR, 0); err == nil {
			return f, nil
		}
	}
	return nil, err
}

// take keeps a file open as long as the attacker runs.
func (a *attacker) take(f *os.File) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		a.hold(fd)
	}
	return err
}

// verbsContext makes a context of a device and a protection domain in it, and
// keeps them.
func (a *attacker) verbsContext(target) error {
	f, err := a.openAny("/dev/infiniband/uverbs*")
	if err != nil {
		return err
	}
	defer f.Close()
	var answer [2]uint32
	for _, c := range []struct {
		number uint32
		out    uint16 // words
	}{{0, 2}, {3, 1}} { // IB_USER_VERBS_CMD_GET_CONTEXT, …_ALLOC_PD
		b := binary.NativeEndian.AppendUint32(nil, c.number)
		b = binary.NativeEndian.AppendUint16(b, 4) // words of the whole
		b = binary.NativeEndian.AppendUint16(b, c.out)
		b = binary.NativeEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&answer[0]))))
		if _, err := unix.Write(int(f.Fd()), b); err != nil {
			return err
		}
		if c.number == 0 {
			a.hold(int(answer[0])) // for asynchronous events
		}
	}
	runtime.KeepAlive(&answer)
	return a.take(f)
}

// management opens a port for management packets, or as the subnet manager.
func (a *attacker) management(target) error {
	f, err := a.openAny([]string{"/dev/infiniband/umad*", "/dev/infiniband/issm*"}[a.IntN(2)])
	if err != nil {
		return err
	}
	defer f.Close()
	return a.take(f)
}
