package mutate

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// From rdma/rdma_netlink.h.
const (
	rdmaSet          = 2  // RDMA_NLDEV_CMD_SET
	rdmaStatSet      = 16 // RDMA_NLDEV_CMD_STAT_SET
	rdmaName         = 2  // RDMA_NLDEV_ATTR_DEV_NAME
	rdmaPort         = 3  // RDMA_NLDEV_ATTR_PORT_INDEX
	rdmaStatMode     = 74 // RDMA_NLDEV_ATTR_STAT_MODE
	rdmaStatResource = 75 // RDMA_NLDEV_ATTR_STAT_RES
	rdmaStatMask     = 76 // RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK
	rdmaCounters     = 80 // RDMA_NLDEV_ATTR_STAT_HWCOUNTERS
	rdmaModeration   = 84 // RDMA_NLDEV_ATTR_DEV_DIM
	rdmaCounter      = 94 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX
)

// rdma are the settings of rdma(8) and sysfs on the RDMA device that moves with
// the NIC in exclusive mode.
var rdma = []Mutation{
	rdmaMessage("RDMA device: name", "rdma dev set mlx5_0 name mine", rdmaSet, testnet.Attribute(rdmaName, []byte("mine\x00"))),
	rdmaMessage("RDMA device: adaptive moderation", "rdma dev set mlx5_0 adaptive-moderation off", rdmaSet,
		testnet.Attribute(rdmaModeration, []byte{0})),
	rdmaMessage("RDMA device: counters of QPs", "rdma statistic qp set link mlx5_0/1 auto type,pid on", rdmaStatSet, port1,
		testnet.Attribute(rdmaStatMode, word(1)), testnet.Attribute(rdmaStatResource, word(19)), testnet.Attribute(rdmaStatMask, word(3))),
	rdmaMessage("RDMA device: optional counters", "rdma statistic set link mlx5_0/1 optional-counters cc_rx_ce_pkts,cc_tx_cnp_pkts", rdmaStatSet,
		port1, optional(5, 6)),
	rdmaFile("RDMA device: age of counters", "ports/1/hw_counters/lifespan", "9000"),
	rdmaFile("RDMA device: description", "node_desc", "somebody else's"),
}

// stuckCounter is a setting that the driver of the rig's NIC does not reset.
var stuckCounter = reported(rdmaMessage("RDMA device: optional counter that the driver keeps on", "rdma statistic set link mlx5_0/1 optional-counters fused_pkts",
	rdmaStatSet, port1, optional(7)))

var port1 = testnet.Attribute(rdmaPort, word(1))

func optional(counters ...uint32) []byte {
	var all []byte
	for _, c := range counters {
		all = append(all, testnet.Attribute(rdmaCounter, word(c))...)
	}
	return testnet.Attribute(rdmaCounters|unix.NLA_F_NESTED, all)
}

var errNoRDMADevice = errors.New("the pod has no RDMA device")

func rdmaMessage(name, cmdline string, command uint16, attrs ...[]byte) Mutation {
	return Mutation{Name: name, By: cmdline, Fate: Restored, Rig: true, Set: func(pod *testnet.Netns, nic string) error {
		name, device := pod.RDMADevice(nic)
		if name == "" {
			return errNoRDMADevice
		}
		_, err := pod.RDMA(command, 0, slices.Concat([][]byte{device}, attrs)...)
		return err
	}}
}

func rdmaFile(name, path, value string) Mutation {
	return Mutation{Name: name, By: "/sys/class/infiniband/mlx5_0/" + path, Fate: Restored, Rig: true, Set: func(pod *testnet.Netns, nic string) (err error) {
		pod.RDMASysfs(nic, func(dir string) { err = os.WriteFile(dir+"/"+path, []byte(value), 0) })
		return err
	}}
}
