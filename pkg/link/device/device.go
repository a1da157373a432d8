package device

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// Settings has the settings of the driver and the queues of a NIC. The NIC keeps them in every
// namespace. The settings of rtnetlink and /proc/sys are not included.
type Settings struct {
	// Ethtool has the driver's answers, by the names in ethtoolSettings.
	Ethtool map[string][]byte `json:"ethtool,omitempty"`
	// DCB has the settings of data center bridging, by the names in dcbSettings.
	DCB map[string][]byte `json:"dcb,omitempty"`
	// Files has the settings below /sys/class/net/NAME that differ from the kernel's defaults. It
	// is nil if they could not be read.
	Files map[string]string `json:"files"`
	// NAPI has the settings of each NAPI instance, if at least one instance has settings of its
	// own.
	NAPI [][]byte `json:"napi,omitempty"`
}

// handle has the sockets and directories by which a NIC's settings are read and set.
type handle struct {
	*netns.Netns
	index   int
	up      bool
	dir     int                       // the NIC's directory in sysfs, -1 if it cannot be opened
	generic *nlsocket.Socket          // a socket of generic netlink
	ioctl   ethtool                   // its socket is -1 if it cannot be opened
	ahead   map[uint8]nlsocket.Answer // the answers that readAhead has read, by command
}

// open opens the sockets and the directory, as far as the machine has them. The caller must close
// the handle.
func open(n *netns.Netns, index int, name string, up bool) (*handle, error) {
	if !netns.IsElement(name) {
		return nil, fmt.Errorf("%q is not the name of an interface", name)
	}
	d := &handle{Netns: n, index: index, up: up, dir: -1, ioctl: ethtool{socket: -1, name: name}}
	if root, err := n.Sysfs(); err == nil {
		d.dir, _ = unix.Openat(root, path.Join("class/net", name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	err := n.Do(func() error {
		if s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			d.ioctl.socket = s
		}
		return nil
	})
	if err == nil {
		d.generic, err = n.Socket(unix.NETLINK_GENERIC)
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *handle) close() {
	for _, fd := range []int{d.dir, d.ioctl.socket} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// Read reads the settings of l. It leaves out settings that cannot be read: a driver that does not
// report a setting must not prevent a loan.
func Read(n *netns.Netns, l *link.Link) (*Settings, error) {
	d, err := open(n, l.Index, l.Name, l.IsUp())
	if err != nil {
		return nil, err
	}
	defer d.close()
	s := &Settings{Ethtool: map[string][]byte{}}
	d.readAhead(func(string) bool { return true })
	for _, setting := range ethtoolSettings {
		if setting.name == linkModes && l.IPoIB != nil {
			continue // ib_ipoib reports the port's modes, which change with the carrier and cannot be set
		}
		if value, err := setting.read(d); err == nil && len(value) <= maxKept {
			s.Ethtool[setting.name] = value
		}
	}
	s.DCB = readDCB(n, l.Name)
	files, err := readFiles(d.dir)
	if err != nil {
		return s, link.StillThere(n, l.Index)
	}
	s.NAPI = ownNAPI(d.readNAPI(), files)
	s.Files = setOnly(files)
	return s, nil
}

// maxKept bounds the size of a setting in a snapshot, such as a list of rules or an indirection
// table. Larger settings are not kept and not restored.
const maxKept = 4096

// Adjust sets the settings that differ from s, and does not check the result. It is cheapest while
// the link is down.
func Adjust(n *netns.Netns, index int, name string, up bool, s *Settings) {
	if s == nil {
		return
	}
	if d, err := open(n, index, name, up); err == nil {
		d.adjust(s)
		d.close()
	}
}

// Restore restores the settings s of the link with this index and name. It returns the settings
// that still differ. It sets only what differs: a change of rings or channels resets the hardware.
func Restore(n *netns.Netns, index int, name string, s *Settings) []link.Changed {
	if s == nil {
		return nil // s is nil if upstream's plugin lent the NIC
	}
	d, err := open(n, index, name, true)
	if err != nil {
		return []link.Changed{{Setting: "settings of the device", Err: err}}
	}
	defer d.close()
	failed := d.adjust(s)
	if len(failed) == 0 {
		return nil
	}
	var left []link.Changed
	still := d.adjust(s)
	if err := link.StillThere(n, index); err != nil {
		return []link.Changed{{Setting: "settings of the device", Err: err}}
	}
	for _, name := range slices.Sorted(maps.Keys(still)) {
		err := still[name]
		if err == nil {
			err = failed[name]
		}
		left = append(left, link.Changed{Setting: name, Err: err})
	}
	return left
}

// adjust sets the settings that differ. It returns the names of these settings, each with the
// kernel's error if the kernel refused.
func (d *handle) adjust(s *Settings) map[string]error {
	differed := map[string]error{}
	d.readAhead(func(name string) bool { _, ok := s.Ethtool[name]; return ok })
	for _, setting := range ethtoolSettings {
		want, ok := s.Ethtool[setting.name]
		if !ok {
			continue
		}
		have, err := setting.read(d)
		if err == nil && bytes.Equal(want, have) {
			continue
		}
		if err == nil {
			var differs bool
			clear(d.ahead) // the change may affect other settings
			if differs, err = setting.set(d, want, have); !differs {
				continue
			}
		}
		differed["ethtool "+setting.name] = err
	}
	maps.Copy(differed, adjustDCB(d.Netns, d.ioctl.name, s.DCB))
	if s.Files == nil {
		return differed
	}
	files, err := d.adjustFiles(s.Files)
	maps.Copy(differed, files)
	if err != nil {
		differed["sysfs"] = err
	}
	maps.Copy(differed, d.adjustNAPI(s))
	return differed
}
