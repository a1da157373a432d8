package nic

import (
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Permit returns an error if the administrator's node file does not permit networks to use the NIC,
// or does not permit them to override one of the guardrails in allow.
func (h *Host) Permit(n *NIC, file *nodefile.File, allow []string) error {
	name, names := n.PCI, []string(nil)
	if n.Link != nil {
		name, names = n.Link.Name, n.Link.Names()
	}
	if !file.OpensNIC(names, n.PCI, h.driverOf(n)) {
		return failure.New(failure.NICProtected, "%s is not open to networks on this node", name).
			Cure(`choose another NIC, or add this NIC to "nics" in %s`, file.Path)
	}
	for _, key := range allow {
		if !file.OpensOverride(key) {
			return failure.New(failure.NICProtected, "%s: networks may not override the guardrail %q on this node", name, key).
				Cure(`remove the guardrail from "allow" of the network, or add it to "allow" in %s`, file.Path)
		}
	}
	return nil
}
