// Package vf has the part of an attachment that configures the lent virtual function as the network
// wants: its VLAN, MAC, spoof check, trust, link state and rates. It sets them through the physical
// function, which stays on the host.
//
// If a setting must change, its earlier value is recorded before the first change. The settings are
// set before the interface is in the pod, and restored once the interface has left (see [Restore]).
//
// In a plan:
//
//	functions := vf.Part{Conf: conf}
package vf
