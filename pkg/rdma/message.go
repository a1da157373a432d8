package rdma

import (
	"github.com/vishvananda/netlink/nl"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Commands and attributes of include/uapi/rdma/rdma_netlink.h that the library does not have.
const (
	cmdPortGet    = 5  // RDMA_NLDEV_CMD_PORT_GET
	cmdQPGet      = 10 // RDMA_NLDEV_CMD_RES_QP_GET
	cmdCMIDGet    = 11 // RDMA_NLDEV_CMD_RES_CM_ID_GET
	cmdGetCharDev = 15 // RDMA_NLDEV_CMD_GET_CHARDEV
	cmdStatSet    = 16 // RDMA_NLDEV_CMD_STAT_SET
	cmdContextGet = 22 // RDMA_NLDEV_CMD_RES_CTX_GET, Linux 5.13
	cmdStatStatus = 24 // RDMA_NLDEV_CMD_STAT_GET_STATUS

	attrNetdevIndex = 50 // RDMA_NLDEV_ATTR_NDEV_INDEX
	attrProtocol    = 67 // RDMA_NLDEV_ATTR_DEV_PROTOCOL
	attrCharType    = 69 // RDMA_NLDEV_ATTR_CHARDEV_TYPE
	attrCharName    = 70 // RDMA_NLDEV_ATTR_CHARDEV_NAME
	attrCharABI     = 71 // RDMA_NLDEV_ATTR_CHARDEV_ABI
	attrCharDev     = 72 // RDMA_NLDEV_ATTR_CHARDEV
	attrModeration  = 84 // RDMA_NLDEV_ATTR_DEV_DIM

	attrQPs          = 19 // RDMA_NLDEV_ATTR_RES_QP
	attrQPNumber     = 21 // RDMA_NLDEV_ATTR_RES_LQPN
	attrResourceType = 26 // RDMA_NLDEV_ATTR_RES_TYPE
	attrPID          = 28 // RDMA_NLDEV_ATTR_RES_PID
	attrKernelName   = 29 // RDMA_NLDEV_ATTR_RES_KERN_NAME
	attrCMIDs        = 30 // RDMA_NLDEV_ATTR_RES_CM_ID
	attrContexts     = 86 // RDMA_NLDEV_ATTR_RES_CTX

	attrStatMode       = 74 // RDMA_NLDEV_ATTR_STAT_MODE
	attrStatResource   = 75 // RDMA_NLDEV_ATTR_STAT_RES
	attrStatAutoMask   = 76 // RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK
	attrCounterIndex   = 94 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX
	attrCounterDynamic = 95 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC
)

// number returns the number in the attribute, whatever its width, or 0 if there is none.
func number(a nlattr.Attrs, typ uint16) uint64 {
	n, _ := a.Uint(typ)
	return n
}

// has reports whether the attribute exists and has a 32-bit number.
func has(a nlattr.Attrs, typ uint16) bool {
	_, ok := a.Uint32(typ)
	return ok
}

func uint32Attr(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }

func textAttr(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }

func deviceAttr(index uint32) *nl.RtAttr { return uint32Attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, index) }

func portAttr(port uint32) *nl.RtAttr { return uint32Attr(nl.RDMA_NLDEV_ATTR_PORT_INDEX, port) }
