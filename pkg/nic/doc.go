// Package nic finds the NIC of the host for a selector, and decides whether it
// may be lent. It also reads facts about a NIC's device from sysfs.
//
// [Host.Select] reads links with pkg/link and device facts from sysfs. The root
// of sysfs is a field of [Host], so that a test can use its own sysfs. The
// guardrails are a table of rules, each with the key that overrides it
// ([Host.Guard]). [Host.Permit] checks the administrator's node file.
//
// The only changes that the package makes are those of [Host.Bind],
// [Host.Unbind] and [Host.Probe]. It does not know CNI.
//
// To select a NIC and check that it may be lent:
//
//	n, err := host.Select(nic.Selector{Device: "ens12np0"})
//	if err != nil {
//		return err
//	}
//	if err := host.Guard(n.Link, allow); err != nil {
//		return err
//	}
package nic
