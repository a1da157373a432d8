// Package nic finds the NIC of the host for a selector, and decides whether it
// may be lent. It also reads facts about a NIC's device from sysfs.
//
// [Host.Select] reads links from pkg/link and device facts from sysfs; the root
// of sysfs is a field of [Host], so that tests use their own. Guardrails are a
// table of rules, each with the key that overrides it, and [Host.Permit] checks
// the administrator's node file.
//
// The package changes nothing but the drivers of PCI functions (bind.go), and does not know CNI.
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
