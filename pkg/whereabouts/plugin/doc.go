// Package plugin is the IPAM plugin whereabouts: it turns the verbs of CNI into calls of
// an [ipam.Store], and the store's answers into a result. It reads the configuration
// of the plugin of the same name and hands out the same addresses (see package ipam for
// the one difference).
//
// With "store": "local", or without a pod and a kubeconfig, addresses are in files of
// the node (package local). With a kubeconfig they are in the cluster (package store). A
// pod without either is refused, because two nodes would hand out the same addresses.
package plugin
