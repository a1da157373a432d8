package attacker

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// many returns how many entries an attack adds: mostly some, seldom very many.
// With NICs of hardware the processor is emulated, so ten times fewer are
// enough.
func (a *attacker) many() int {
	n := 300
	if a.IntN(12) == 0 {
		n = 10000
	}
	if a.Hardware {
		n /= 10
	}
	return n
}

// elsewhere returns an address of 198.18.0.0/15 (RFC 2544), which no pod of the
// tests has.
func elsewhere(i int) []byte { return binary.BigEndian.AppendUint32(nil, 198<<24|18<<16+uint32(i)) }

const addTo = unix.NLM_F_CREATE | unix.NLM_F_REPLACE

func (a *attacker) addresses(link target) error {
	from := a.IntN(50000)
	return send(a.many(), func(b []byte, i int) []byte {
		head := []byte{unix.AF_INET, 32, 0, 0, 0, 0, 0, 0}
		binary.NativeEndian.PutUint32(head[4:], uint32(link.index))
		return raw(b, unix.RTM_NEWADDR, addTo, head, nl.NewRtAttr(unix.IFA_LOCAL, elsewhere(from+i)), nl.NewRtAttr(unix.IFA_ADDRESS, elsewhere(from+i)))
	})
}

func (a *attacker) routes(link target) error {
	_ = up(link.index) // otherwise the kernel refuses with a reason
	return send(a.many(), func(b []byte, i int) []byte {
		head := []byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0}
		return raw(b, unix.RTM_NEWROUTE, addTo, head, nl.NewRtAttr(unix.RTA_DST, elsewhere(60000+i)), attribute(unix.RTA_OIF, uint32(link.index)),
			attribute(unix.RTA_TABLE, uint32(100+i%300)))
	})
}

func (a *attacker) rules(link target) error {
	return send(a.many()/3, func(b []byte, i int) []byte {
		head := []byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_MAIN, 0, 0, 1 /* FR_ACT_TO_TBL */, 0, 0, 0, 0}
		return raw(b, unix.RTM_NEWRULE, unix.NLM_F_CREATE, head, attribute(1, elsewhere32(i)), text(nl.FRA_IIFNAME, link.name))
	})
}

// elsewhere32 returns elsewhere as the number in the message.
func elsewhere32(i int) uint32 { return binary.NativeEndian.Uint32(elsewhere(i)) }

func (a *attacker) neighbors(link target) error {
	return send(a.many(), func(b []byte, i int) []byte {
		head := make([]byte, 12)
		head[0] = unix.AF_INET
		binary.NativeEndian.PutUint32(head[4:], uint32(link.index))
		binary.NativeEndian.PutUint16(head[8:], unix.NUD_PERMANENT)
		return raw(b, unix.RTM_NEWNEIGH, addTo, head, nl.NewRtAttr(unix.NDA_DST, elsewhere(i)), nl.NewRtAttr(unix.NDA_LLADDR, a.hardware()))
	})
}

// flush removes the pod's addresses of the tests' range from an interface.
func (a *attacker) flush(link target) error {
	err := send(250, func(b []byte, i int) []byte {
		head := []byte{unix.AF_INET, 24, 0, 0, 0, 0, 0, 0}
		binary.NativeEndian.PutUint32(head[4:], uint32(link.index))
		return raw(b, unix.RTM_DELADDR, 0, head, nl.NewRtAttr(unix.IFA_LOCAL, []byte{10, 60, 0, byte(1 + i)}))
	})
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		err = nil // it had some of them at most
	}
	return err
}

// fdb adds unicast addresses to the interface's filter.
func (a *attacker) fdb(link target) error {
	return send(20, func(b []byte, _ int) []byte {
		head := make([]byte, 12)
		head[0] = unix.AF_BRIDGE
		binary.NativeEndian.PutUint32(head[4:], uint32(link.index))
		binary.NativeEndian.PutUint16(head[8:], unix.NUD_PERMANENT)
		head[10] = unix.NTF_SELF
		return raw(b, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE, head, nl.NewRtAttr(unix.NDA_LLADDR, a.hardware()))
	})
}
