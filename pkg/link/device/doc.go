// Package device reads and restores the settings of a NIC that neither rtnetlink nor /proc/sys has: the settings of its
// driver (ethtool, data center bridging) and of its queues (sysfs, NAPI). [Settings] is a part of a snapshot of
// pkg/nicstate.
//
//   - device.go: [Read] and [Restore]. The lists of settings are in the other files.
//   - ethtool.go: ethtoolSettings, a row for each setting of ethtool(8).
//   - files.go: deviceFiles and queueFiles, the settings in sysfs.
//   - dcb.go: dcbSettings.
//   - napi.go: napiSettings.
//   - facts.go: what the driver reports and nobody sets: speed, statistics, firmware.
//
// A setting that another version of the kernel or another driver does not have is left out.
package device
