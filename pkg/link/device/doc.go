// Package device reads and restores what a NIC has beyond rtnetlink and /proc/sys: the settings of its driver (ethtool, data
// center bridging) and of its queues (sysfs, NAPI). [Settings] is a part of a snapshot of pkg/nicstate.
//
//   - device.go: [Read], [Restore]. Their lists are in the other files.
//   - ethtool.go: ethtoolSettings, a row for each setting of ethtool(8).
//   - files.go: deviceFiles and queueFiles, the settings in sysfs.
//   - dcb.go: dcbSettings.
//   - napi.go: napiSettings.
//   - facts.go: what the driver reports and nobody sets: speed, statistics, firmware.
//
// A setting that another version of the kernel or another driver lacks is left out.
package device
