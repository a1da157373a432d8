package link

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Linux 5.14 reports the parent device of a link over rtnetlink
// (IFLA_PARENT_DEV_NAME). An older kernel shows it in sysfs only, to a mount of
// the link's namespace.

// parentKinds are the kinds of links that have a parent device, but no IFLA_PARENT_DEV_NAME on an
// old kernel. Pods make links of other kinds by the thousand.
var parentKinds = []string{"device", "ipoib"}

func (l *Link) mayHaveParent() bool {
	return l.ParentDev == "" && l.Encap != "loopback" && slices.Contains(parentKinds, l.Kind)
}

// parents is what is known about the running kernel.
var parents struct {
	sync.Mutex
	known    bool
	reported bool // the kernel has the attribute, so a link without the attribute has no parent
}

// reportsParents reports whether the kernel has the attribute IFLA_PARENT_DEV_NAME. It does not
// look at the version, because vendors add the attribute to older kernels. It asks the kernel once,
// with an attribute whose text is not terminated: a kernel that knows the attribute refuses that
// request (NLA_NUL_STRING of ifla_policy), and an older kernel ignores the attribute.
func reportsParents(n *netns.Netns) bool {
	parents.Lock()
	defer parents.Unlock()
	if !parents.known {
		refused, err := refuses(n, unix.IFLA_PARENT_DEV_NAME, []byte("x"))
		if err != nil {
			return false // unknown: sysfs answers as well
		}
		parents.known, parents.reported = true, refused
	}
	return parents.reported
}

// refuses reports whether the kernel refuses a request to describe the loopback because the request
// has this attribute. The kernel ignores attributes that it does not know.
func refuses(n *netns.Netns, attribute int, value []byte) (bool, error) {
	req := askLink(0, 1)
	req.AddData(nl.NewRtAttr(attribute, value))
	err := n.Exchange(req, func([]byte) {})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) {
		return true, nil
	}
	return false, err
}

// errOtherLink means that sysfs has no link with that name and index: the link
// was renamed or moved after the kernel described it.
var errOtherLink = errors.New("the link is renamed or moved at this moment")

// parentTries bounds the tries to read the parent of a link that its pod renames again and again.
const parentTries = 100

// addParents sets the parents of these links, if the kernel does not report them. If a link is
// gone, its parent stays empty. If a link is renamed all the time, addParents sets its Damage.
func addParents(n *netns.Netns, links ...*Link) error {
	i := slices.IndexFunc(links, (*Link).mayHaveParent)
	if i < 0 || reportsParents(n) {
		return nil
	}
	sys, err := n.Sysfs()
	if errors.Is(err, unix.ENOSYS) {
		return nil // CheckKernel refuses to lend here; what was lent has no parent in its record
	}
	if err != nil {
		return err
	}
	for _, l := range links[i:] {
		if !l.mayHaveParent() {
			continue
		}
		err := addParent(n, sys, l)
		if errors.Is(err, errOtherLink) {
			l.damaged(fmt.Errorf("parent device: %w", err))
		} else if err != nil {
			return fmt.Errorf("parent device of %s in netns %s: %w", l.Name, n.Path, err)
		}
	}
	return nil
}

func addParent(n *netns.Netns, sys int, l *Link) error {
	name := l.Name
	for range parentTries {
		var err error
		if l.ParentDev, l.ParentBus, err = parentIn(sys, name, l.Index); !errors.Is(err, errOtherLink) {
			return err
		}
		now, err := ReadWithoutParent(n, l.Index)
		if errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return err
		}
		name = now.Name
	}
	return errOtherLink
}

// parentIn returns the name and bus of the parent device of the link with this name and index, as
// the sysfs sys shows them. It returns empty strings for a virtual link. It opens the link's
// directory first, which stays the same if the link is renamed.
func parentIn(sys int, name string, index int) (dev, bus string, err error) {
	if !netns.IsElement(name) {
		return "", "", errOtherLink
	}
	dir, err := unix.Openat(sys, path.Join("class/net", name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if netns.Starved(err) {
		return "", "", err
	}
	if err != nil {
		return "", "", errOtherLink
	}
	defer unix.Close(dir)
	text, err := netns.ReadSetting(dir, "ifindex")
	if netns.Starved(err) {
		return "", "", err
	}
	if err != nil || text != strconv.Itoa(index) {
		return "", "", errOtherLink
	}
	device, err := readLinkAt(dir, "device")
	if errors.Is(err, unix.ENOENT) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	subsystem, err := readLinkAt(dir, "device/subsystem")
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return "", "", err
	}
	// The path ends in bus/pci, for example. For a device without a bus it is ../../class/….
	if above, name := path.Split(subsystem); path.Base(above) == "bus" {
		bus = name
	}
	return path.Base(device), bus, nil
}

func readLinkAt(dir int, name string) (string, error) {
	target := make([]byte, unix.PathMax)
	size, err := unix.Readlinkat(dir, name, target)
	if err != nil {
		return "", err
	}
	return string(target[:size]), nil
}

// OpenSysfs opens the sysfs directory of the link with this index. The caller must close it. The link may be
// renamed meanwhile.
func OpenSysfs(n *netns.Netns, index int) (dir int, err error) {
	root, err := n.Sysfs()
	if err != nil {
		return -1, err
	}
	const tries = 5
	for range tries {
		var l *Link
		if l, err = ByIndex(n, index); err != nil {
			return -1, err
		}
		dir, err = unix.Openat(root, path.Join("class/net", l.Name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if v, readErr := netns.ReadSetting(dir, "ifindex"); readErr == nil && v == strconv.Itoa(index) {
			return dir, nil
		}
		_ = unix.Close(dir)
		err = ErrNotFound
	}
	return -1, fmt.Errorf("the link with index %d in the sysfs of netns %s: %w", index, n.Path, err)
}
