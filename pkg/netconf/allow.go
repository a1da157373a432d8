package netconf

import (
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Override keys are the values of "allow". With an override key a user has a NIC lent despite a
// guardrail. The guardrails themselves are in pkg/nic.
const (
	AllowUplink   = "uplink"   // the NIC carries a default route, connections or storage of the host
	AllowMember   = "member"   // the NIC belongs to a bond, team, bridge, VRF or OVS
	AllowChildren = "children" // the NIC has VLANs, macvlans, tunnels, … on it, which the move destroys or disconnects
	// The NIC's RDMA device also serves a NIC that stays on the host and loses RDMA.
	AllowSharedRDMA = "shared-rdma"
	// The NIC has BPF programs of the host (XDP, tcx). They are detached, and are not restored.
	AllowBPF = "bpf"
	// The NIC has virtual functions or subfunctions. They go down with the NIC, and the NIC's
	// holder can configure them.
	AllowVFs = "vfs"
	// Processes or kernel modules of the host use the NIC's RDMA device, which must move.
	AllowInUse = "in-use"
	// A subnet manager runs on a port of the NIC's RDMA device, which must move.
	AllowSubnetManager = "subnet-manager"
)

// Overrides lists all override keys.
var Overrides = []string{AllowUplink, AllowMember, AllowChildren, AllowSharedRDMA, AllowBPF, AllowVFs, AllowInUse, AllowSubnetManager}

// checkAllow returns an error for an unknown override key.
func checkAllow(keys []string) error {
	for _, key := range keys {
		if !slices.Contains(Overrides, key) {
			return failure.New(failure.InvalidConfig, `"allow" has no key %q`, key).Cure("use %s", strings.Join(Overrides, ", "))
		}
	}
	return nil
}
