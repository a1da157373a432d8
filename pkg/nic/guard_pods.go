package nic

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// The following guardrails need facts that are not visible in the host netns.
// The caller has them from the ledger or from the RDMA core.

// GuardPodLink returns an error because a link of a pod is stacked on the NIC,
// unless that is overridden. kind is the link's, and holder names its pod.
func GuardPodLink(nic, kind, holder string, allow []string) error {
	if slices.Contains(allow, netconf.AllowChildren) {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: a %s on it belongs to %s", nic, kind, holder).
		Cure(`choose another NIC, or add "allow": [%q] to the config if that pod may lose its interface`, netconf.AllowChildren)
}

// ErrInUse is wrapped by [GuardInUse].
var ErrInUse = errors.New("it is in use")

// maxUsers bounds the users that an error names.
const maxUsers = 5

// GuardInUse returns an error if an RDMA device that is to move with nic has users on the
// host, who would lose it, unless that is overridden.
func GuardInUse(device, nic string, users []string, allow []string) error {
	if len(users) == 0 || slices.Contains(allow, netconf.AllowInUse) {
		return nil
	}
	text := strings.Join(users[:min(len(users), maxUsers)], ", ")
	if more := len(users) - maxUsers; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return failure.From(fmt.Errorf("%w by %s", ErrInUse, text), failure.NICProtected, "RDMA device %s of %s must stay on the host", device, nic).
		Cure(`stop these users, choose another NIC, or add "allow": [%q] to the config if they may lose the device`, netconf.AllowInUse)
}

// GuardSubnetManager returns an error because a subnet manager runs on a port of the RDMA device, which is
// to move with nic, unless that is overridden.
func GuardSubnetManager(device, nic string, port uint32, allow []string) error {
	if slices.Contains(allow, netconf.AllowSubnetManager) {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: a subnet manager runs on port %d of its RDMA device %s", nic, port, device).
		Cure(`run the manager elsewhere, choose another NIC, or add "allow": [%q] to the config if the fabric may lose it`, netconf.AllowSubnetManager)
}

// GuardFarChildren returns an error because children of the InfiniBand interface nic are in other network
// namespaces, and are destroyed when the RDMA device moves, unless that is overridden.
func GuardFarChildren(nic string, queuePairs []uint32, allow []string) error {
	if len(queuePairs) == 0 || slices.Contains(allow, netconf.AllowChildren) {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: %d InfiniBand interfaces on its port are in other network namespaces (queue pairs %v)", nic, len(queuePairs), queuePairs).
		Cure("see `ip -all netns exec ip -d link show type ipoib`; choose another NIC, or add \"allow\": [%q] to the config if they may be destroyed", netconf.AllowChildren)
}

// ErrSharedRDMA is wrapped by [GuardSharedRDMA].
var ErrSharedRDMA = errors.New("it also serves another NIC")

// GuardSharedRDMA returns an error because an RDMA device that is to move with nic
// also serves another NIC that stays on the host, unless that is overridden.
func GuardSharedRDMA(device, nic, other string, allow []string) error {
	if slices.Contains(allow, netconf.AllowSharedRDMA) {
		return nil
	}
	return failure.From(ErrSharedRDMA, failure.NICProtected, "RDMA device %s of %s (%s)", device, nic, other).
		Cure(`lend both, set "rdma": "off", or add "allow": [%q] if %s may lose RDMA`, netconf.AllowSharedRDMA, other)
}
