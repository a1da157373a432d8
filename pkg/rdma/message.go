package rdma

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Commands and attributes of include/uapi/rdma/rdma_netlink.h that the library
// does not name.
const (
	cmdPortGet    = 5  // RDMA_NLDEV_CMD_PORT_GET
	cmdGetCharDev = 15 // RDMA_NLDEV_CMD_GET_CHARDEV
	cmdStatSet    = 16 // RDMA_NLDEV_CMD_STAT_SET
	cmdStatStatus = 24 // RDMA_NLDEV_CMD_STAT_GET_STATUS

	attrNetdevIndex = 50 // RDMA_NLDEV_ATTR_NDEV_INDEX
	attrProtocol    = 67 // RDMA_NLDEV_ATTR_DEV_PROTOCOL
	attrCharType    = 69 // RDMA_NLDEV_ATTR_CHARDEV_TYPE
	attrCharName    = 70 // RDMA_NLDEV_ATTR_CHARDEV_NAME
	attrCharABI     = 71 // RDMA_NLDEV_ATTR_CHARDEV_ABI
	attrCharDev     = 72 // RDMA_NLDEV_ATTR_CHARDEV
	attrModeration  = 84 // RDMA_NLDEV_ATTR_DEV_DIM

	attrStatMode       = 74 // RDMA_NLDEV_ATTR_STAT_MODE
	attrStatResource   = 75 // RDMA_NLDEV_ATTR_STAT_RES
	attrStatAutoMask   = 76 // RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK
	attrCounterIndex   = 94 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX
	attrCounterDynamic = 95 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC
)

var errMessage = errors.New("malformed RDMA netlink message")

// attribute is one netlink attribute (struct nlattr): its type without the
// flag bits, and its value.
type attribute struct {
	kind  uint16
	value []byte
}

type attributes []attribute

// parse splits the payload of a message, or of a nested attribute, into its
// attributes. The values point into m. The messages of RDMA_NL_NLDEV have no
// header of their own.
func parse(m []byte) (attributes, error) {
	var attrs attributes
	for len(m) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(m))
		if length < unix.SizeofRtAttr || length > len(m) {
			return nil, errMessage
		}
		kind := binary.NativeEndian.Uint16(m[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		attrs = append(attrs, attribute{kind: kind, value: m[unix.SizeofRtAttr:length]})
		next := (length + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1)
		m = m[min(next, len(m)):]
	}
	return attrs, nil
}

func (a attributes) get(kind uint16) []byte {
	for _, one := range a {
		if one.kind == kind {
			return one.value
		}
	}
	return nil
}

// uint gives the number in the attribute, whatever its width, and 0 when it
// is absent or no number.
func (a attributes) uint(kind uint16) uint64 {
	switch v := a.get(kind); len(v) {
	case 1:
		return uint64(v[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(v))
	case 4:
		return uint64(binary.NativeEndian.Uint32(v))
	case 8:
		return binary.NativeEndian.Uint64(v)
	default:
		return 0
	}
}

// text gives the string in the attribute, up to its NUL.
func (a attributes) text(kind uint16) string {
	return unix.ByteSliceToString(a.get(kind))
}

func has32(a attributes, kind uint16) bool { return len(a.get(kind)) == 4 }

func uint32Attr(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }

func textAttr(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }

func deviceAttr(index uint32) *nl.RtAttr { return uint32Attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, index) }

func portAttr(port uint32) *nl.RtAttr { return uint32Attr(nl.RDMA_NLDEV_ATTR_PORT_INDEX, port) }
