package nic

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// The following guardrails need facts that are not visible in the host netns. The caller gets these
// facts from the ledger or from the RDMA core.

// GuardPodLink returns the error that a link of a pod is stacked on the NIC, or nil if allow
// overrides the guardrail. kind is the kind of that link, and holder names the pod. For an IPoIB
// child allow has no effect, because all pods on the port would lose their interfaces.
func GuardPodLink(nic, kind, holder string, allow []string) error {
	if kind == link.KindIPoIB {
		return failure.New(failure.NICProtected, "%s must stay on the host: an IPoIB child of it belongs to %s", nic, holder).
			Cure("choose another NIC, or delete the pods that share this NIC")
	}
	if slices.Contains(allow, netconf.AllowChildren) {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: a %s on it belongs to %s", nic, kind, holder).
		Cure(`choose another NIC, or add "allow": [%q] to the config if that pod may lose its interface`, netconf.AllowChildren)
}

// ErrInUse is wrapped by the error of [GuardInUse].
var ErrInUse = errors.New("it is in use")

// maxUsers bounds the number of users that an error names.
const maxUsers = 5

// GuardInUse returns an error if the RDMA device, which is to move with nic, has users on the host,
// because they would lose the device. It returns nil if allow overrides the guardrail.
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

// GuardGUID returns an error if the port of nic is InfiniBand and has no GUID of its own. A subnet
// manager ignores a port with the GUID 0. A virtual function has the GUID 0 when it is made. If it
// has got a GUID for a pod, its GUID is all ones after the pod has ended.
func GuardGUID(nic string, infiniBand bool, guid uint64) error {
	if !infiniBand || sriov.IsGUID(guid) {
		return nil
	}
	return failure.New(failure.NotAvailable, "%s has no GUID of its own (%016x), by which a subnet manager knows its port", nic, guid).
		Cure(`set a GUID when the function is made (as the SR-IOV network operator does; or run "ip link set PF vf N node_guid … port_guid …" and rebind its driver); or use "type": "ib-sriov" with a "guid" for the pod (ib-kubernetes sets one)`)
}

// GuardSubnetManager returns the error that a subnet manager runs on a port of the RDMA device,
// which is to move with nic. It returns nil if allow overrides the guardrail.
func GuardSubnetManager(device, nic string, port uint32, allow []string) error {
	if slices.Contains(allow, netconf.AllowSubnetManager) {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: a subnet manager runs on port %d of its RDMA device %s", nic, port, device).
		Cure(`run the manager elsewhere, choose another NIC, or add "allow": [%q] to the config if the fabric may lose it`, netconf.AllowSubnetManager)
}

// GuardFarInterfaces returns the error that InfiniBand interfaces on the RDMA device of nic are in
// other network namespaces, where the kernel destroys them when the device moves. queuePairs has
// the queue pairs of these interfaces. GuardFarInterfaces returns nil if allow overrides the
// guardrail.
func GuardFarInterfaces(nic string, queuePairs []uint32, allow []string) error {
	if len(queuePairs) == 0 || slices.Contains(allow, netconf.AllowChildren) {
		return nil
	}
	return failure.New(failure.NICProtected, "%s must stay on the host: its RDMA device has InfiniBand interfaces in other network namespaces (queue pairs %v)",
		nic, queuePairs).
		Cure("see `ip -all netns exec ip -d link show type ipoib`; choose another NIC, or add \"allow\": [%q] to the config if you can do without these interfaces, which are then destroyed",
			netconf.AllowChildren)
}

// GuardOtherPort returns the error that the kernel destroys other, the InfiniBand interface of
// another port, when the RDMA device moves with nic. The error wraps [ErrSharedRDMA].
// GuardOtherPort returns nil if allow overrides the guardrail.
func GuardOtherPort(device, nic, other string, allow []string) error {
	if slices.Contains(allow, netconf.AllowSharedRDMA) {
		return nil
	}
	return failure.From(ErrSharedRDMA, failure.NICProtected, "RDMA device %s of %s (%s)", device, nic, other).
		Cure(`set "rdma": "off", or add "allow": [%q] if the kernel may destroy %s and re-create it without its settings`, netconf.AllowSharedRDMA, other)
}

// ErrSharedRDMA is wrapped by the errors of [GuardSharedRDMA] and [GuardOtherPort].
var ErrSharedRDMA = errors.New("it also serves another NIC")

// GuardSharedRDMA returns the error that the RDMA device, which is to move with nic, also serves
// other, a NIC that stays on the host. It returns nil if allow overrides the guardrail.
func GuardSharedRDMA(device, nic, other string, allow []string) error {
	if slices.Contains(allow, netconf.AllowSharedRDMA) {
		return nil
	}
	return failure.From(ErrSharedRDMA, failure.NICProtected, "RDMA device %s of %s (%s)", device, nic, other).
		Cure(`lend both NICs, set "rdma": "off", or add "allow": [%q] if %s may lose RDMA`, netconf.AllowSharedRDMA, other)
}
