// Package sriovcni ends the attachments of sriov-cni (k8snetworkplumbingwg) on nodes that switch over while pods run:
// it returns their virtual functions with the settings that they had before, and removes sriov-cni's files.
// It has two parts of attachments, between which the part of the NIC returns the interface:
//
//	first, last := sriovcni.Parts(sriovcni.Dir)
package sriovcni
