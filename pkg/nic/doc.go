// Package nic answers two questions: which NIC of the host does a selector
// mean, and may it be lent. It also reads facts of a NIC's device from sysfs.
//
// [Host.Select] reads links from pkg/link and device facts from sysfs; where
// sysfs lies is a field of [Host], so that tests bring their own. Guardrails
// are a table of rules, each with the key that overrides it, and [Host.Permit]
// checks the administrator's node file.
//
// The package changes nothing, and knows nothing of CNI.
package nic
