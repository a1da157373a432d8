// Package vf has the part of an attachment that sets VLAN, MAC, spoof check, trust, link state and rates of
// the lent virtual function, as the network wants, through the physical function, which stays on the host.
//
// The settings that differ are recorded as they were before the first change. They are set before the
// interface is in the pod, and restored once it has left (see [Restore]).
//
// In a plan:
//
//	functions := vf.Part{Conf: conf}
package vf
