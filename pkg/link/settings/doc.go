// Package settings reads and restores the settings of a link that rtnetlink has, and that the link keeps when it moves to
// another namespace: numbers, the broadcast address of the link layer, the IPv6 token and the mode of IPoIB. Beside them it
// compares the counts of a link's receivers, which no request sets.
//
//   - settings.go: numbers, a row for each; [Read] and [Restore]. The broadcast address and the token.
//   - ipoib.go: the mode of InfiniBand interfaces.
//   - receivers.go: the counts.
//
// Settings of sysctl(8) are in package sysctl, those of drivers and queues in package device.
package settings
