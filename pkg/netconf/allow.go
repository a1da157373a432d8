package netconf

import (
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Override keys: what a user writes under "allow" to have a NIC lent in spite of
// a guardrail. The guardrails themselves are in pkg/nic.
const (
	AllowUplink   = "uplink"   // it carries a default route of the host, its connections or its storage
	AllowMember   = "member"   // it belongs to a bond, team, bridge, VRF or OVS
	AllowChildren = "children" // VLANs, macvlans, tunnels, … lie on it; the move destroys them or leads them nowhere
	// Its RDMA device also serves a NIC that stays on the host, which loses RDMA.
	AllowSharedRDMA = "shared-rdma"
	// It has BPF programs of the host (XDP, tcx). They are detached, and do not
	// come back.
	AllowBPF = "bpf"
	// It has virtual functions or subfunctions. They go down with it, and its
	// holder can configure them.
	AllowVFs = "vfs"
)

// Overrides are all override keys.
var Overrides = []string{AllowUplink, AllowMember, AllowChildren, AllowSharedRDMA, AllowBPF, AllowVFs}

// checkAllow returns an error for a key that is no override key.
func checkAllow(keys []string) error {
	for _, key := range keys {
		if !slices.Contains(Overrides, key) {
			return failure.WithCure(failure.New(failure.InvalidConfig, `"allow" has no key %q`, key), "use "+strings.Join(Overrides, ", "))
		}
	}
	return nil
}
