package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Generic sends one request to a generic netlink family and returns the
// attributes of the answers.
func (n *Netns) Generic(family string, command uint8, flags int, attributes ...[]byte) ([][]byte, error) {
	n.t.Helper()
	answers, err := n.ask(unix.NETLINK_GENERIC, unix.GENL_ID_CTRL, 0,
		append([]byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0}, Attribute(unix.CTRL_ATTR_FAMILY_NAME, []byte(family+"\x00"))...))
	if err != nil {
		return nil, err
	}
	id := Find(answers[0][4:], unix.CTRL_ATTR_FAMILY_ID)
	answers, err = n.ask(unix.NETLINK_GENERIC, binary.NativeEndian.Uint16(id), flags, append([]byte{command, 1, 0, 0}, slices.Concat(attributes...)...))
	for i := range answers {
		answers[i] = answers[i][4:]
	}
	return answers, err
}

// Find returns the value of the first attribute of this kind, or nil.
func Find(rest []byte, kind uint16) []byte {
	for len(rest) >= 4 {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < 4 || length > len(rest) {
			return nil
		}
		if binary.NativeEndian.Uint16(rest[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return rest[4:length]
		}
		rest = rest[min((length+3)&^3, len(rest)):]
	}
	return nil
}

// Ethtool calls an ethtool ioctl on a link; argument is the struct, into which
// the kernel writes its answer.
func (n *Netns) Ethtool(name string, argument []byte) error {
	n.t.Helper()
	return n.Do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&argument[0])}
		copy(request.name[:], name)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	})
}

// EthtoolHeader returns the attribute that names the link in a message of the
// family "ethtool". Each message needs it.
func (n *Netns) EthtoolHeader(name string) []byte {
	return Attribute(1|unix.NLA_F_NESTED, slices.Concat(
		Attribute(unix.ETHTOOL_A_HEADER_DEV_NAME, []byte(name+"\x00")), Attribute(unix.ETHTOOL_A_HEADER_FLAGS, words(1))))
}

// Sysfs calls f with the directory of a link below /sys/class/net, as seen in
// the namespace.
func (n *Netns) Sysfs(name string, f func(dir string)) {
	n.t.Helper()
	mount := -1
	n.Inside(func() {
		var err error
		if mount, err = netns.MountSysfs(0); err != nil {
			n.t.Fatal(err)
		}
	})
	defer unix.Close(mount)
	f(fmt.Sprintf("/proc/self/fd/%d/class/net/%s", mount, name))
}

// Kept returns all settings of a link that [Netns.State] and [Netns.Attributes]
// leave out: of ethtool(8), of its queues and NAPI instances, in sysfs, of its
// RDMA device, of tc(8) and bridge(8).
func (n *Netns) Kept(name string) string {
	n.t.Helper()
	var b strings.Builder
	var lines []string
	n.ethtoolState(&b, name)
	n.napiState(&b, name)
	n.Sysfs(name, func(dir string) { sysfsState(&b, dir) })
	n.rdmaState(&b, name)
	n.dcbState(&b, name)
	fmt.Fprintf(&b, "tcx programs %d\n", n.TCX(name))
	for program, calls := range map[string][]string{
		"tc":     {"qdisc show dev " + name, "filter show dev " + name + " ingress", "filter show dev " + name + " egress"},
		"bridge": {"fdb show dev " + name},
		"ip":     {"maddress show dev " + name, "neigh show proxy dev " + name},
	} {
		if _, err := exec.LookPath(program); err != nil {
			continue // the rig has no tc
		}
		// Without a qdisc "filter show" fails, so errors are ignored.
		cmd := exec.Command(program, "-n", n.Name, "-force", "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(calls, "\n") + "\n")
		out, _ := cmd.Output()
		for line := range strings.Lines(string(out)) {
			lines = append(lines, program+" "+strings.TrimSpace(index.ReplaceAllString(line, "")))
		}
	}
	slices.Sort(lines)
	return b.String() + strings.Join(lines, "\n") + "\n"
}

// index matches the interface index in the output of `ip maddress`.
var index = regexp.MustCompile(`^\d+:`)

// gets are the messages that read settings (ETHTOOL_MSG_*_GET), with the
// attributes that are counters or that the link detects itself.
var gets = []struct {
	name    string
	command uint8
	skip    []string
}{
	{"debug", unix.ETHTOOL_MSG_DEBUG_GET, nil},
	{"wol", unix.ETHTOOL_MSG_WOL_GET, nil},
	{"features", unix.ETHTOOL_MSG_FEATURES_GET, nil},
	{"privflags", unix.ETHTOOL_MSG_PRIVFLAGS_GET, nil},
	{"rings", unix.ETHTOOL_MSG_RINGS_GET, nil},
	{"channels", unix.ETHTOOL_MSG_CHANNELS_GET, nil},
	{"coalesce", unix.ETHTOOL_MSG_COALESCE_GET, nil},
	{"pause", unix.ETHTOOL_MSG_PAUSE_GET, nil},
	{"eee", unix.ETHTOOL_MSG_EEE_GET, []string{"4"}},
	{"fec", unix.ETHTOOL_MSG_FEC_GET, nil},
	{"linkmodes", unix.ETHTOOL_MSG_LINKMODES_GET, []string{"4", "5", "6"}},
	{"rss", unix.ETHTOOL_MSG_RSS_GET, nil},
	{"module", unix.ETHTOOL_MSG_MODULE_GET, nil},
	{"mm", unix.ETHTOOL_MSG_MM_GET, nil},
	{"tsconfig", unix.ETHTOOL_MSG_TSCONFIG_GET, nil},
}

// Settings returns the settings that ethtool(8) shows of a link; [Netns.Dump]
// has only some of them.
func (n *Netns) Settings(name string) string {
	n.t.Helper()
	var b strings.Builder
	n.ethtoolState(&b, name)
	return b.String()
}

func (n *Netns) ethtoolState(b *strings.Builder, name string) {
	for _, g := range gets {
		answers, err := n.Generic("ethtool", g.command, 0, n.EthtoolHeader(name))
		if err != nil {
			fmt.Fprintf(b, "ethtool %s: %v\n", g.name, err)
			continue
		}
		skip := func(path string) bool { return path == "1" || slices.Contains(g.skip, path) }
		var text strings.Builder
		dump(&text, "", answers[0], skip, nil)
		for line := range strings.Lines(text.String()) {
			fmt.Fprintf(b, "ethtool %s %s", g.name, line)
		}
	}
	for flow := range uint32(0x12) { // ETHTOOL_GRXFH
		a := append(words(0x29, flow), make([]byte, 184)...)
		if n.Ethtool(name, a) == nil {
			fmt.Fprintf(b, "ethtool flow hash %d %x\n", flow, a[8:16])
		}
	}
	for location := range uint32(64) { // ETHTOOL_GRXCLSRULE
		a := append(words(0x2f), make([]byte, 188)...)
		copy(a[176:], words(location))
		if n.Ethtool(name, a) == nil {
			fmt.Fprintf(b, "ethtool rule %d %x\n", location, a[16:184])
		}
	}
	for tunable := range uint32(8) { // ETHTOOL_GTUNABLE
		for kind, size := range map[uint32]uint32{2: 2, 3: 4} {
			a := append(words(0x48, tunable, kind, size), make([]byte, 8)...)
			if n.Ethtool(name, a) == nil {
				fmt.Fprintf(b, "ethtool tunable %d %x\n", tunable, a[16:])
			}
		}
	}
}

func (n *Netns) napiState(b *strings.Builder, name string) {
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		n.t.Fatal(err)
	}
	answers, err := n.Generic("netdev", 11, unix.NLM_F_DUMP, Attribute(1, words(uint32(l.Index)))) // NETDEV_CMD_NAPI_GET
	if err != nil {
		fmt.Fprintf(b, "napi: %v\n", err)
		return
	}
	slices.SortFunc(answers, func(x, y []byte) int {
		return int(binary.NativeEndian.Uint32(Find(x, 2))) - int(binary.NativeEndian.Uint32(Find(y, 2)))
	})
	for i, a := range answers {
		for _, kind := range []uint16{5, 6, 7, 8} {
			fmt.Fprintf(b, "napi %d %d = %x\n", i, kind, Find(a, kind))
		}
	}
}

// dcbState writes the answer of data center bridging (DCB_CMD_IEEE_GET), nothing for a driver
// without it.
func (n *Netns) dcbState(b *strings.Builder, name string) {
	answers, err := n.ask(unix.NETLINK_ROUTE, unix.RTM_GETDCB, 0, append([]byte{unix.AF_UNSPEC, 21, 0, 0}, Attribute(1, []byte(name+"\x00"))...))
	if err != nil {
		return
	}
	for _, m := range answers {
		fmt.Fprintf(b, "dcb mode %x\n", Find(m[4:], 14))
		for kind := range uint16(13) {
			fmt.Fprintf(b, "dcb %d %x\n", kind, Find(Find(m[4:], 13), kind))
		}
	}
}

// SetDCB changes attributes of data center bridging (DCB_CMD_IEEE_SET).
func (n *Netns) SetDCB(name string, attributes ...[]byte) error {
	n.t.Helper()
	ieee := Attribute(13|unix.NLA_F_NESTED, slices.Concat(attributes...))
	_, err := n.ask(unix.NETLINK_ROUTE, unix.RTM_SETDCB, 0, slices.Concat([]byte{unix.AF_UNSPEC, 20, 0, 0}, Attribute(1, []byte(name+"\x00")), ieee))
	return err
}

// sysfsState writes the content of every writable file.
func sysfsState(b *strings.Builder, dir string) {
	err := filepath.WalkDir(dir+"/", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(path, dir+"/")
		if d.IsDir() && slices.Contains([]string{"power", "statistics", "gids", "gid_attrs", "pkeys"}, d.Name()) {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o200 == 0 || rel == "uevent" {
			return err
		}
		if strings.HasSuffix(rel, "byte_queue_limits/limit") {
			return nil // the kernel adjusts it to the traffic
		}
		text, err := os.ReadFile(path)
		if err != nil {
			var errno unix.Errno
			errors.As(err, &errno)
			text = []byte(errno.Error())
		}
		fmt.Fprintf(b, "sysfs %s = %s\n", rel, strings.TrimSpace(string(text)))
		return nil
	})
	if err != nil {
		fmt.Fprintf(b, "sysfs: %v\n", err)
	}
}
