package netconf

import (
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Override keys: the values of "allow" with which a user has a NIC lent despite
// a guardrail. The guardrails themselves are in pkg/nic.
const (
	AllowUplink   = "uplink"   // it carries a default route of the host, its connections or its storage
	AllowMember   = "member"   // it belongs to a bond, team, bridge, VRF or OVS
	AllowChildren = "children" // VLANs, macvlans, tunnels, … on it; the move destroys or disconnects them
	// Its RDMA device also serves a NIC that stays on the host and loses RDMA.
	AllowSharedRDMA = "shared-rdma"
	// It has BPF programs of the host (XDP, tcx). They are detached, and are
	// not restored.
	AllowBPF = "bpf"
	// It has virtual functions or subfunctions. They go down with it, and its
	// holder can configure them.
	AllowVFs = "vfs"
	// Processes or kernel modules of the host use its RDMA device, which is to move.
	AllowInUse = "in-use"
	// A subnet manager runs on a port of its RDMA device, which is to move.
	AllowSubnetManager = "subnet-manager"
)

// Overrides are all override keys.
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
