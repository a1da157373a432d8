package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// ethtoolSetting is the setting of an option of ethtool(8). The function read reads the setting,
// and the function set sets what differs. set reports whether anything differs.
type ethtoolSetting struct {
	name string
	read func(d *handle) ([]byte, error)
	set  func(d *handle, want, have []byte) (differs bool, err error)
	get  uint8 // the command that reads the setting, if it is from overNetlink
}

// ethtoolSettings are in the order in which they are restored: the number of channels determines
// how many rings and flows there are.
var ethtoolSettings = []ethtoolSetting{
	overNetlink{name: "channels", get: unix.ETHTOOL_MSG_CHANNELS_GET, set: unix.ETHTOOL_MSG_CHANNELS_SET, state: []uint16{2, 3, 4, 5}}.setting(),
	overNetlink{name: "rings", get: unix.ETHTOOL_MSG_RINGS_GET, set: unix.ETHTOOL_MSG_RINGS_SET, state: []uint16{2, 3, 4, 5, 16, 18}}.setting(),
	overNetlink{name: "features", get: unix.ETHTOOL_MSG_FEATURES_GET, set: unix.ETHTOOL_MSG_FEATURES_SET, state: []uint16{2, 4, 5}, bitsets: []uint16{3}}.setting(),
	overNetlink{name: "private flags", get: unix.ETHTOOL_MSG_PRIVFLAGS_GET, set: unix.ETHTOOL_MSG_PRIVFLAGS_SET, bitsets: []uint16{2}}.setting(),
	overNetlink{name: "coalescing", get: unix.ETHTOOL_MSG_COALESCE_GET, set: unix.ETHTOOL_MSG_COALESCE_SET, volatile: adaptive}.setting(),
	overNetlink{name: "pause", get: unix.ETHTOOL_MSG_PAUSE_GET, set: unix.ETHTOOL_MSG_PAUSE_SET, state: []uint16{5, 6}, volatile: negotiatedPause}.setting(),
	overNetlink{name: linkModes, get: unix.ETHTOOL_MSG_LINKMODES_GET, set: unix.ETHTOOL_MSG_LINKMODES_SET, state: []uint16{4, 8, 10}, bitsets: []uint16{3}, volatile: negotiated}.setting(),
	overNetlink{name: "FEC", get: unix.ETHTOOL_MSG_FEC_GET, set: unix.ETHTOOL_MSG_FEC_SET, state: []uint16{4, 5}, bitsets: []uint16{2}}.setting(),
	overNetlink{name: "EEE", get: unix.ETHTOOL_MSG_EEE_GET, set: unix.ETHTOOL_MSG_EEE_SET, state: []uint16{3, 4}, bitsets: []uint16{2}}.setting(),
	overNetlink{name: "wake-on-LAN", get: unix.ETHTOOL_MSG_WOL_GET, set: unix.ETHTOOL_MSG_WOL_SET, bitsets: []uint16{2}}.setting(),
	overNetlink{name: "message level", get: unix.ETHTOOL_MSG_DEBUG_GET, set: unix.ETHTOOL_MSG_DEBUG_SET, bitsets: []uint16{2}}.setting(),
	overNetlink{name: "time stamping", get: unix.ETHTOOL_MSG_TSCONFIG_GET, set: unix.ETHTOOL_MSG_TSCONFIG_SET, bitsets: []uint16{3, 4, 5}}.setting(),
	{name: "RSS", read: readRSS, set: setRSS},
	{name: "flow hash", read: readFlowHash, set: setFlowHash},
	{name: "flow rules", read: readRules, set: setRules},
	{name: "tunables", read: readTunables, set: setTunables},
}

const linkModes = "link modes"

// overNetlink is a setting of the generic netlink family "ethtool" (Linux 5.6;
// linux/ethtool_netlink.h). An attribute that is not listed here counts as a setting, so the
// attributes of newer kernels are noticed.
type overNetlink struct {
	name     string
	get, set uint8
	state    []uint16 // attributes that cannot be set
	bitsets  []uint16 // attributes that are bitsets
	// volatile, if set, removes the attributes that the driver may change by itself.
	volatile func(nlattr.Attrs) nlattr.Attrs
}

const (
	ethtoolHeader    = 1 // ETHTOOL_A_*_HEADER of every message
	compactBitsets   = 1 // ETHTOOL_FLAG_COMPACT_BITSETS
	unknownSpeed     = ^uint32(0)
	unknownDuplex    = 0xff
	linkmodesAutoneg = unix.ETHTOOL_A_LINKMODES_AUTONEG
)

func (o overNetlink) setting() ethtoolSetting {
	return ethtoolSetting{name: o.name, read: o.read, set: o.change, get: o.get}
}

func (d *handle) ethtoolHeader() nlattr.Attr {
	return nlattr.Attr{Type: ethtoolHeader, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, nlattr.Attrs{
		{Type: unix.ETHTOOL_A_HEADER_DEV_INDEX, Value: binary.NativeEndian.AppendUint32(nil, uint32(d.index))},
		{Type: unix.ETHTOOL_A_HEADER_FLAGS, Value: binary.NativeEndian.AppendUint32(nil, compactBitsets)},
	})}
}

// readAhead reads the settings for whose names wanted returns true, as far as they are read over
// netlink. It reads all of them in one system call. The next read of each setting then needs no
// request.
func (d *handle) readAhead(wanted func(name string) bool) {
	d.ahead = map[uint8]nlsocket.Answer{}
	var commands []uint8
	for _, s := range ethtoolSettings {
		if s.get != 0 && wanted(s.name) {
			commands = append(commands, s.get)
		}
	}
	if len(commands) == 0 {
		return
	}
	answers, err := d.generic.AskAll(nlsocket.FamilyEthtool, commands, nlattr.Attrs{d.ethtoolHeader()})
	if err != nil {
		return // read will ask again
	}
	for i, command := range commands {
		d.ahead[command] = answers[i]
	}
}

func (o overNetlink) answer(d *handle) (nlattr.Attrs, error) {
	if a, ok := d.ahead[o.get]; ok {
		delete(d.ahead, o.get)
		return a.Attrs, a.Err
	}
	answers, err := d.generic.Ask(nlsocket.FamilyEthtool, o.get, 0, nlattr.Attrs{d.ethtoolHeader()})
	if err == nil && len(answers) != 1 {
		err = nlattr.ErrMalformed
	}
	if err != nil {
		return nil, err
	}
	return answers[0], nil
}

func (o overNetlink) read(d *handle) ([]byte, error) {
	attrs, err := o.answer(d)
	if err != nil {
		return nil, err
	}
	attrs = attrs.Without(append(o.state, ethtoolHeader)...)
	if o.volatile != nil {
		attrs = o.volatile(attrs)
	}
	return nlattr.Marshal(nil, attrs), nil
}

// change sends the attributes of want that differ from have.
func (o overNetlink) change(d *handle, want, have []byte) (differs bool, err error) {
	wanted, err := nlattr.Parse(want)
	if err != nil {
		return true, err
	}
	now, err := nlattr.Parse(have)
	if err != nil {
		return true, err
	}
	change := nlattr.Attrs{d.ethtoolHeader()}
	for _, a := range wanted {
		is, ok := now.Get(a.Type)
		if !ok || bytes.Equal(a.Value, is) {
			continue
		}
		if slices.Contains(o.bitsets, a.Type) {
			if a.Value = bitsetChange(a.Value, is); a.Value == nil {
				continue
			}
		}
		change = append(change, a)
	}
	if len(change) == 1 {
		return false, nil
	}
	_, err = d.generic.Ask(nlsocket.FamilyEthtool, o.set, 0, change)
	return true, err
}

// bitsetChange returns the bitset that changes have into want: the wanted values with a mask of the
// bits that differ. It returns nil if no bits differ. Without the mask the kernel would try to set
// all bits, including those that cannot be set.
//
// bitsetChange compares only bits that both masks allow: without a carrier some drivers (i40e)
// support, and advertise, other link modes.
func bitsetChange(want, have []byte) []byte {
	w, errW := nlattr.Parse(want)
	h, errH := nlattr.Parse(have)
	size, _ := w.Get(unix.ETHTOOL_A_BITSET_SIZE)
	wanted, _ := w.Get(unix.ETHTOOL_A_BITSET_VALUE)
	now, _ := h.Get(unix.ETHTOOL_A_BITSET_VALUE)
	if errW != nil || errH != nil || len(wanted) != len(now) {
		return nil
	}
	mask := make([]byte, len(wanted))
	for i := range mask {
		mask[i] = wanted[i] ^ now[i]
		for _, set := range []nlattr.Attrs{w, h} {
			if can, ok := set.Get(unix.ETHTOOL_A_BITSET_MASK); ok && len(can) == len(mask) {
				mask[i] &= can[i]
			}
		}
	}
	if !slices.ContainsFunc(mask, func(b byte) bool { return b != 0 }) {
		return nil
	}
	return nlattr.Marshal(nil, nlattr.Attrs{
		{Type: unix.ETHTOOL_A_BITSET_SIZE, Value: size},
		{Type: unix.ETHTOOL_A_BITSET_VALUE, Value: wanted},
		{Type: unix.ETHTOOL_A_BITSET_MASK, Value: mask},
	})
}

// negotiated removes the attributes that the link partner decides, and those that are not decided
// yet.
func negotiated(attrs nlattr.Attrs) nlattr.Attrs {
	if auto, _ := attrs.Uint(linkmodesAutoneg); auto != 0 {
		return attrs.Without(unix.ETHTOOL_A_LINKMODES_SPEED, unix.ETHTOOL_A_LINKMODES_DUPLEX, unix.ETHTOOL_A_LINKMODES_LANES)
	}
	if speed, _ := attrs.Uint(unix.ETHTOOL_A_LINKMODES_SPEED); speed == uint64(unknownSpeed) {
		attrs = attrs.Without(unix.ETHTOOL_A_LINKMODES_SPEED)
	}
	if duplex, _ := attrs.Uint(unix.ETHTOOL_A_LINKMODES_DUPLEX); duplex == unknownDuplex {
		attrs = attrs.Without(unix.ETHTOOL_A_LINKMODES_DUPLEX)
	}
	return attrs
}

// negotiatedPause removes the attributes that the link partner decides. With autonegotiation some
// drivers (igb, ixgbe, e1000e) report the outcome instead of the setting.
func negotiatedPause(attrs nlattr.Attrs) nlattr.Attrs {
	if auto, _ := attrs.Uint(unix.ETHTOOL_A_PAUSE_AUTONEG); auto != 0 {
		return attrs.Without(unix.ETHTOOL_A_PAUSE_RX, unix.ETHTOOL_A_PAUSE_TX)
	}
	return attrs
}

// adaptive removes the attributes that the driver sets by itself in adaptive mode.
func adaptive(attrs nlattr.Attrs) nlattr.Attrs {
	if enabled, _ := attrs.Uint(unix.ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX); enabled != 0 {
		attrs = attrs.Without(unix.ETHTOOL_A_COALESCE_RX_USECS, unix.ETHTOOL_A_COALESCE_RX_MAX_FRAMES)
	}
	if enabled, _ := attrs.Uint(unix.ETHTOOL_A_COALESCE_USE_ADAPTIVE_TX); enabled != 0 {
		attrs = attrs.Without(unix.ETHTOOL_A_COALESCE_TX_USECS, unix.ETHTOOL_A_COALESCE_TX_MAX_FRAMES)
	}
	return attrs
}

// From linux/ethtool.h: settings for which there is no netlink message, or only a recent one.
const (
	ethtoolGRXRINGS     = 0x2d
	ethtoolGRXFH        = 0x29
	ethtoolSRXFH        = 0x2a
	ethtoolGRXCLSRLCNT  = 0x2e
	ethtoolGRXCLSRULE   = 0x2f
	ethtoolGRXCLSRLALL  = 0x30
	ethtoolSRXCLSRLDEL  = 0x31
	ethtoolSRXCLSRLINS  = 0x32
	ethtoolGRSSH        = 0x46
	ethtoolSRSSH        = 0x47
	rssHeader           = 24  // struct ethtool_rxfh without its table and key
	rxnfcSize           = 192 // struct ethtool_rxnfc
	rxnfcSpec           = 16  // offset of struct ethtool_rx_flow_spec in struct ethtool_rxnfc
	rxnfcLocation       = 176 // offset in it of the location of the flow spec
	rxnfcCount          = 184
	rxnfcLocations      = 188
	maxRSS              = 1 << 14
	maxRules            = 1 << 16 // more than hardware has room for
	flowHashEntry       = 16      // command, flow type, fields
	specialLocation     = 1 << 31
	indirectionNoChange = ^uint32(0)
	ethtoolGTUNABLE     = 0x48
	ethtoolSTUNABLE     = 0x49
	tunableHeader       = 16 // command, id, type, length
	tunableSize         = tunableHeader + 4
)

var errTooMuch = errors.New("more than is kept")

func (d *handle) call(a []byte) error {
	if d.ioctl.socket < 0 {
		return unix.EBADF
	}
	return d.ioctl.call(a)
}

// readRSS reads the key, the hash function and the indirection table of receive side scaling. It
// leaves out an even table, which is the default of every driver.
func readRSS(d *handle) ([]byte, error) {
	sizes := argument(rssHeader, ethtoolGRSSH)
	if err := d.call(sizes); err != nil {
		return nil, err
	}
	entries, key := binary.NativeEndian.Uint32(sizes[8:]), binary.NativeEndian.Uint32(sizes[12:])
	if entries > maxRSS || key > maxRSS {
		return nil, errTooMuch
	}
	all := argument(rssHeader+4*int(entries)+int(key), ethtoolGRSSH, 0, entries, key)
	if err := d.call(all); err != nil {
		return nil, err
	}
	if table := all[rssHeader:][:4*entries]; d.isEven(table) {
		all = slices.Concat(all[:rssHeader], all[rssHeader+len(table):])
	}
	return all, nil
}

// isEven reports whether the table lists all rings in turn, as the kernel's default does
// (ethtool_rxfh_indir_default).
func (d *handle) isEven(table []byte) bool {
	rings := argument(rxnfcSize, ethtoolGRXRINGS)
	if err := d.call(rings); err != nil {
		return false
	}
	n := binary.NativeEndian.Uint64(rings[8:])
	for i := 0; 4*i < len(table); i++ {
		if n == 0 || uint64(binary.NativeEndian.Uint32(table[4*i:])) != uint64(i)%n {
			return false
		}
	}
	return true
}

func setRSS(d *handle, want, _ []byte) (bool, error) {
	a := slices.Clone(want)
	if len(a) < rssHeader {
		return true, nlattr.ErrMalformed
	}
	binary.NativeEndian.PutUint32(a, ethtoolSRSSH)
	entries, key := binary.NativeEndian.Uint32(a[8:]), binary.NativeEndian.Uint32(a[12:])
	switch len(a) {
	case rssHeader + int(key): // without a table: the kernel makes the even table
		binary.NativeEndian.PutUint32(a[8:], 0)
		if entries == 0 {
			binary.NativeEndian.PutUint32(a[8:], indirectionNoChange)
		}
	case rssHeader + 4*int(entries) + int(key):
	default:
		return true, nlattr.ErrMalformed
	}
	return true, d.call(a)
}

// flowTypes are the types of flow whose hash can be set (linux/ethtool.h: TCP_V4_FLOW, …).
var flowTypes = []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x10, 0x11}

// readFlowHash reads, for each type of flow, which fields of a packet RSS hashes.
func readFlowHash(d *handle) ([]byte, error) {
	var all []byte
	for _, flow := range flowTypes {
		a := argument(rxnfcSize, ethtoolGRXFH, flow)
		if err := d.call(a); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) && len(all) == 0 {
				return nil, err
			}
			continue
		}
		all = append(all, a[:flowHashEntry]...)
	}
	if len(all) == 0 {
		return nil, unix.EOPNOTSUPP
	}
	return all, nil
}

func setFlowHash(d *handle, want, have []byte) (bool, error) {
	var errs []error
	for w, h := want, have; len(w) >= flowHashEntry && len(h) >= flowHashEntry; w, h = w[flowHashEntry:], h[flowHashEntry:] {
		if bytes.Equal(w[:flowHashEntry], h[:flowHashEntry]) {
			continue
		}
		a := append(slices.Clone(w[:flowHashEntry]), make([]byte, rxnfcSize-flowHashEntry)...)
		binary.NativeEndian.PutUint32(a, ethtoolSRXFH)
		errs = append(errs, d.call(a))
	}
	return true, errors.Join(errs...)
}

// readRules reads the rules that steer received packets (ntuple). The result has one struct
// ethtool_rx_flow_spec for each rule, in the order of their locations.
func readRules(d *handle) ([]byte, error) {
	rules, err := d.rules()
	if err != nil {
		return nil, err
	}
	return slices.Concat(rules...), nil
}

// rulesTime bounds the removal of flow rules. Each removal is a command to the hardware.
const rulesTime = 10 * time.Second

func (d *handle) rules() ([][]byte, error) {
	count := argument(rxnfcSize, ethtoolGRXCLSRLCNT)
	if err := d.call(count); err != nil {
		return nil, err
	}
	n := binary.NativeEndian.Uint32(count[rxnfcCount:])
	if n > maxRules {
		return nil, errTooMuch
	}
	if n == 0 {
		return nil, nil
	}
	all := argument(rxnfcSize+4*int(n), ethtoolGRXCLSRLALL)
	binary.NativeEndian.PutUint32(all[rxnfcCount:], n)
	if err := d.call(all); err != nil {
		return nil, err
	}
	var rules [][]byte
	for i := range min(n, binary.NativeEndian.Uint32(all[rxnfcCount:])) {
		rule := argument(rxnfcSize, ethtoolGRXCLSRULE)
		copy(rule[rxnfcLocation:], all[rxnfcLocations+4*i:][:4])
		if err := d.call(rule); err != nil {
			return nil, err
		}
		rules = append(rules, rule[rxnfcSpec:rxnfcCount])
	}
	return rules, nil
}

// setRules removes the unwanted rules, and inserts the missing ones.
func setRules(d *handle, want, _ []byte) (bool, error) {
	was := slices.Collect(slices.Chunk(want, rxnfcCount-rxnfcSpec))
	now, err := d.rules()
	if err != nil {
		return true, err
	}
	isIn := func(rules [][]byte, rule []byte) bool {
		return slices.ContainsFunc(rules, func(r []byte) bool { return bytes.Equal(r, rule) })
	}
	var errs []error
	send := func(command uint32, rule []byte) {
		a := argument(rxnfcSize, command)
		copy(a[rxnfcSpec:], rule)
		errs = append(errs, d.call(a))
	}
	deadline := time.Now().Add(rulesTime)
	for i, rule := range now {
		if time.Now().After(deadline) {
			return true, fmt.Errorf("%d flow rules remain, remove them by hand: %w", len(now)-i, os.ErrDeadlineExceeded)
		}
		if !isIn(was, rule) {
			send(ethtoolSRXCLSRLDEL, rule)
		}
	}
	for _, rule := range was {
		if !isIn(now, rule) {
			send(ethtoolSRXCLSRLINS, rule)
		}
	}
	return true, errors.Join(errs...)
}

// tunables are the driver's tunables: id, type (ETHTOOL_TUNABLE_U16, _U32) and
// length.
var tunables = [][3]uint32{
	{1, 3, 4}, // rx-copybreak
	{2, 3, 4}, // tx-copybreak
	{3, 2, 2}, // pfc-prevention-tout
	{4, 3, 4}, // tx-copybreak-buf-size
}

// readTunables reads each tunable as a struct ethtool_tunable with room for 4 bytes.
func readTunables(d *handle) ([]byte, error) {
	var all []byte
	for _, t := range tunables {
		a := argument(tunableSize, ethtoolGTUNABLE, t[0], t[1], t[2])
		if d.call(a) == nil {
			all = append(all, a...)
		}
	}
	if len(all) == 0 {
		return nil, unix.EOPNOTSUPP
	}
	return all, nil
}

func setTunables(d *handle, want, have []byte) (bool, error) {
	var errs []error
	now := slices.Collect(slices.Chunk(have, tunableSize))
	for w := range slices.Chunk(want, tunableSize) {
		if len(w) < tunableSize || slices.ContainsFunc(now, func(h []byte) bool { return bytes.Equal(h, w) }) {
			continue
		}
		a := slices.Clone(w)
		binary.NativeEndian.PutUint32(a, ethtoolSTUNABLE)
		errs = append(errs, d.call(a))
	}
	return true, errors.Join(errs...)
}
