package attacker

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxInterfaces is the number of own interfaces above which the program removes some.
const maxInterfaces = 16

// add makes a link that the program owns, and sets it up.
func (a *attacker) add(l netlink.Link) error {
	if len(interfaces()) > maxInterfaces {
		return unix.ENOSPC
	}
	if err := netlink.LinkAdd(l); err != nil {
		return err
	}
	names := []string{l.Attrs().Name}
	if v, is := l.(*netlink.Veth); is {
		names = append(names, v.PeerName)
	}
	for _, name := range names {
		index, err := indexOf(name)
		if err == nil {
			err = up(index)
		}
		if err != nil {
			return err
		}
		a.made = append(a.made, index)
	}
	return nil
}

func (a *attacker) attrs() netlink.LinkAttrs {
	return netlink.LinkAttrs{Name: "x" + a.word(9), TxQLen: -1}
}

// bridge makes a bridge, and the interface its port.
func (a *attacker) bridge(link target) error {
	b := &netlink.Bridge{LinkAttrs: a.attrs()}
	if err := a.add(b); err != nil {
		return err
	}
	index, err := indexOf(b.Name)
	if err != nil {
		return err
	}
	return change(link.index, 0, 0, attribute(unix.IFLA_MASTER, uint32(index)))
}

func (a *attacker) macvlanOver(link target) error {
	m := &netlink.Macvlan{LinkAttrs: a.attrs(), Mode: netlink.MACVLAN_MODE_BRIDGE}
	m.ParentIndex = link.index
	return a.add(m)
}

func (a *attacker) vlanOver(link target) error {
	v := &netlink.Vlan{LinkAttrs: a.attrs(), VlanId: 1 + a.IntN(4000), VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	v.ParentIndex = link.index
	return a.add(v)
}

func (a *attacker) vxlanOver(link target) error {
	return a.add(&netlink.Vxlan{LinkAttrs: a.attrs(), VxlanId: 1 + a.IntN(1<<20), VtepDevIndex: link.index, Port: 4789, Group: net.IPv4(239, 1, 1, 1)})
}

// vethAsRail makes a cable one end of which has the name of one of the host's
// NICs and the alias of another.
func (a *attacker) vethAsRail(target) error {
	v := &netlink.Veth{LinkAttrs: a.attrs(), PeerName: "y" + a.word(9)}
	v.Name = a.rail()
	if err := a.add(v); err != nil {
		return err
	}
	index, err := indexOf(v.Name)
	if err != nil {
		return err
	}
	return a.alias(target{v.Name, index})
}

// inItsPlace renames the interface, and makes another one with its name, whose
// alias is that of a NIC of the host.
func (a *attacker) inItsPlace(link target) error {
	if err := a.rename(link); err != nil {
		return err
	}
	v := &netlink.Veth{LinkAttrs: a.attrs(), PeerName: "y" + a.word(9)}
	v.Name = link.name
	if err := a.add(v); err != nil {
		return err
	}
	index, err := indexOf(link.name)
	if err != nil {
		return err
	}
	return a.alias(target{link.name, index})
}

// removeOwn removes some of the links that the program made.
func (a *attacker) removeOwn(target) error {
	for _, l := range interfaces() {
		if slices.Contains(a.made, l.index) && a.IntN(2) == 0 {
			// The cable's other end is gone by now, unless it is in the host.
			_ = request(unix.RTM_DELLINK, 0, l.index, 0, 0)
		}
	}
	return nil
}

// inNested runs f on a thread in a new namespace, which ends when f returns.
func inNested(f func(inside *os.File) error) error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		inside, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			err = f(inside)
			inside.Close()
		}
		failed <- err
	}()
	return <-failed
}

// move moves an interface of the thread's namespace to another one.
func move(index int, to *os.File) error {
	return change(index, 0, 0, attribute(unix.IFLA_NET_NS_FD, uint32(to.Fd())))
}

// errVeth: a veth that stands for a NIC is identified only by its index in the
// namespace, which a move changes. A NIC of hardware is identified by its
// device.
var errVeth = errors.New("a veth stays")

func stays(link target) error {
	info := make([]uint32, 49) // struct ethtool_drvinfo
	info[0] = unix.ETHTOOL_GDRVINFO
	if err := ethtool(link.name, info); err != nil {
		return err
	}
	if info[1] == binary.NativeEndian.Uint32([]byte("veth")) {
		return errVeth
	}
	return nil
}

// nested moves the interface to a namespace of its own, and brings it back with
// another name.
func (a *attacker) nested(link target) error {
	if err := stays(link); err != nil {
		return err
	}
	pause := time.Duration(a.IntN(300)) * time.Millisecond
	name := a.word(12)
	return inNested(func(inside *os.File) error {
		if err := a.fromGround(link, inside); err != nil {
			return err
		}
		_ = up(link.index)
		time.Sleep(pause)
		_ = change(link.index, 0, 0, text(unix.IFLA_IFNAME, name)) // or it keeps its own
		return move(link.index, a.ground)
	})
}

// fromGround moves an interface of the program's namespace, from a thread in
// another namespace.
func (a *attacker) fromGround(link target, to *os.File) error {
	return a.onGround(func() error { return move(link.index, to) })
}

// onGround calls f in the program's namespace, from a thread in another one.
func (a *attacker) onGround(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(int(a.ground.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// hidden moves the interface to a namespace that keeps it for some seconds and
// then ends with it.
func (a *attacker) hidden(link target) error {
	if err := stays(link); err != nil {
		return err
	}
	return a.hide(func(inside *os.File) error {
		err := a.fromGround(link, inside)
		if err == nil {
			err = up(link.index)
		}
		return err
	}, func() {})
}

// hide makes a namespace into which take moves something, then calls arrived in
// it; the namespace ends some seconds later. The attacks go on meanwhile.
func (a *attacker) hide(take func(inside *os.File) error, arrived func()) error {
	pause := time.Duration(100+a.IntN(2000)) * time.Millisecond
	moved := make(chan error, 1)
	go func() {
		err := inNested(func(inside *os.File) error {
			err := take(inside)
			arrived()
			moved <- err
			time.Sleep(pause)
			return nil
		})
		if err != nil {
			moved <- err
		}
	}()
	return <-moved
}
