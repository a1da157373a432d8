package testnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notOfAnyPod are further attributes of RTM_NEWLINK that may differ when a NIC
// was destroyed and made again.
var notOfAnyPod = map[string]string{
	"5":  "IFLA_LINK: the index of the cable's other end",
	"37": "IFLA_LINK_NETNSID: a number that the kernel gives on demand",
}

// volatileOf are, of addresses, routes and neighbors, the attributes that may
// differ.
var volatileOf = map[string]map[string]string{
	"address": {"6": "IFA_CACHEINFO: has the time at which the address was given"},
	"route":   {"4": "RTA_OIF: the interface's index", "12": "RTA_CACHEINFO: counters"},
	"neigh":   {"3": "NDA_CACHEINFO: ages", "4": "NDA_PROBES: a counter"},
}

// Dump returns all facts that the kernel reports about an interface, without
// the packages that it checks (pkg/link, pkg/nicstate): all attributes of rtnetlink, of its addresses, routes
// and permanent neighbors, queueing disciplines, the ethtool ioctls, attached
// programs, sysctls, and, in the netns of this process's /sys, its settings
// there. Each line is one fact. The dump of a missing interface is "".
func (n *Netns) Dump(name string) string {
	n.t.Helper()
	d := dumper{name: name}
	err := n.Do(func() error {
		var err error
		if d.index, err = indexOf(name); err != nil {
			return err
		}
		d.rtnetlink()
		d.programs()
		d.files("/proc/sys/net")
		return nil
	})
	if errors.Is(err, unix.ENODEV) {
		return ""
	}
	if err != nil {
		return err.Error() // the interface is being moved
	}
	d.ethtool(n)
	if n.current() {
		d.sysfs()
	}
	slices.Sort(d.lines)
	return strings.Join(d.lines, "\n") + "\n"
}

// current reports whether /sys shows this namespace.
func (n *Netns) current() bool {
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/net", &st) == nil && st.Ino == n.ID.Inode
}

type dumper struct {
	name  string
	index int
	lines []string
}

func (d *dumper) add(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// indexOf requests only an interface's index.
func indexOf(name string) (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	err = unix.IoctlIfreq(s, unix.SIOCGIFINDEX, r)
	return int(r.Uint32()), err
}

// rtnetlink adds the link itself, and its addresses, routes, neighbors and
// queueing disciplines.
func (d *dumper) rtnetlink() {
	links, err := ask(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, words(0, uint32(d.index), 0, 0))
	if err != nil {
		d.add("%v", err)
	}
	for _, m := range links {
		d.add("link type %d flags %x", binary.NativeEndian.Uint16(m[2:]), binary.NativeEndian.Uint32(m[8:]))
		var b strings.Builder
		dump(&b, "", m[unix.SizeofIfInfomsg:], func(path string) bool { return MayDiffer[path] != "" || notOfAnyPod[path] != "" }, nests)
		for line := range strings.Lines(b.String()) {
			d.add("link %s", strings.TrimSpace(line))
		}
	}
	onLink := func(m []byte) bool { return int(binary.NativeEndian.Uint32(m[4:])) == d.index }
	d.objects("address", unix.RTM_GETADDR, unix.SizeofIfAddrmsg, words(0, 0), onLink)
	d.objects("neigh", unix.RTM_GETNEIGH, unix.SizeofNdMsg, words(0, 0, 0), func(m []byte) bool {
		return onLink(m) && binary.NativeEndian.Uint16(m[8:])&unix.NUD_PERMANENT != 0
	})
	leaves := Attribute(unix.RTA_OIF, words(uint32(d.index)))
	d.objects("route", unix.RTM_GETROUTE, unix.SizeofRtMsg, words(unix.AF_INET, 0, 0), func(m []byte) bool { return bytes.Contains(m, leaves) })
	d.objects("route", unix.RTM_GETROUTE, unix.SizeofRtMsg, words(unix.AF_INET6, 0, 0), func(m []byte) bool { return bytes.Contains(m, leaves) })
	disciplines, err := ask(unix.NETLINK_ROUTE, unix.RTM_GETQDISC, unix.NLM_F_DUMP, words(0, 0, 0, 0, 0))
	if err != nil {
		d.add("%v", err)
	}
	for _, m := range disciplines {
		if onLink(m) { // TCA_KIND comes first
			d.add("qdisc parent %x %s", binary.NativeEndian.Uint32(m[12:]), printable(m[24:20+binary.NativeEndian.Uint16(m[20:])]))
		}
	}
}

// objects adds the interface's objects of a kind, each as one line: its header
// without the index, and its attributes.
func (d *dumper) objects(kind string, request uint16, header int, payload []byte, match func(m []byte) bool) {
	answers, err := ask(unix.NETLINK_ROUTE, request, unix.NLM_F_DUMP, payload)
	if err != nil {
		d.add("%v", err)
	}
	for _, m := range answers {
		if !match(m) {
			continue
		}
		if kind != "route" {
			clear(m[4:8])
		}
		var b strings.Builder
		dump(&b, "", m[header:], func(path string) bool { return volatileOf[kind][path] != "" }, nil)
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		slices.Sort(lines)
		d.add("%s %x %s", kind, m[:header], strings.Join(lines, ", "))
	}
}

// ethtool adds the results of these ioctl commands.
func (d *dumper) ethtool(n *Netns) {
	for _, command := range []struct {
		name   string
		number uint32
		size   int
	}{
		{"features", unix.ETHTOOL_GFEATURES, 8 + 4*16},
		{"coalesce", unix.ETHTOOL_GCOALESCE, 92},
		{"ring", unix.ETHTOOL_GRINGPARAM, 36},
		{"channels", unix.ETHTOOL_GCHANNELS, 36},
		{"pause", unix.ETHTOOL_GPAUSEPARAM, 16},
		{"private flags", unix.ETHTOOL_GPFLAGS, 8},
		{"wol", unix.ETHTOOL_GWOL, 20},
		{"message level", unix.ETHTOOL_GMSGLVL, 8},
	} {
		data := make([]byte, command.size)
		copy(data, words(command.number, 4)) // of features the kernel has fewer than 4 blocks
		if err := n.Ethtool(d.name, data); err != nil {
			d.add("ethtool %s: %v", command.name, err)
			continue
		}
		d.add("ethtool %s %x", command.name, data[4:])
	}
}

// programs adds the number of attached tcx programs (BPF_PROG_QUERY). Those of
// XDP are in the link's attributes.
func (d *dumper) programs() {
	for name, attach := range map[string]uint32{"ingress": attachTCXIn, "egress": attachTCXOut} {
		query := struct {
			index, attach, flags, attachFlags uint32
			ids                               uint64
			count, _                          uint32
			_                                 [4]uint64
		}{index: uint32(d.index), attach: attach}
		if _, _, e := unix.Syscall(unix.SYS_BPF, bpfProgQuery, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query)); e != 0 {
			d.add("tcx %s: %v", name, e)
			continue
		}
		d.add("tcx %s %d", name, query.count)
	}
}

// files adds the sysctls of the interface.
func (d *dumper) files(root string) {
	for _, below := range []string{"ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh", "mpls/conf"} {
		dir := filepath.Join(root, below, d.name)
		entries, _ := os.ReadDir(dir) // a kernel without the feature has none
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			d.add("%s/%s %s %v", below, e.Name(), strings.TrimSpace(string(text)), err != nil)
		}
	}
}

// notSettings are the files below /sys/class/net/NAME that are not settings, or
// that rtnetlink reports as well.
var notSettings = []string{
	"statistics", "ifindex", "iflink", "carrier_changes", "carrier_up_count", "carrier_down_count", "uevent",
	"inflight", "stall_cnt", "stall_max", "tx_timeout", "hold_time", "power",
}

// sysfs adds the settings of the interface and of its queues in /sys.
func (d *dumper) sysfs() {
	root := "/sys/class/net/" + d.name + "/"
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || slices.Contains(notSettings, filepath.Base(path)):
			if e != nil && e.IsDir() {
				return fs.SkipDir
			}
		case e.Type().IsRegular():
			if text, err := os.ReadFile(path); err == nil {
				d.add("sysfs %s %s", strings.TrimPrefix(path, root), strings.TrimSpace(string(text)))
			}
		}
		return nil
	})
}

// Index returns the index of an interface. It does not read its attributes.
func (n *Netns) Index(name string) (index int, err error) {
	n.t.Helper()
	err = n.Do(func() (err error) { index, err = indexOf(name); return err })
	return index, err
}

// Has reports whether an interface of that name exists.
func (n *Netns) Has(name string) bool {
	n.t.Helper()
	_, err := n.Index(name)
	return err == nil
}
