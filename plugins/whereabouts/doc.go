// whereabouts is an IPAM plugin that reads the configuration of the plugin of
// the same name and hands out the same addresses (see package ipam for the one
// divergence). Its one job is to turn the verbs of CNI into calls of an
// ipam.Store and the answer into a result.
//
// Which store: "store": "local", or a call without a pod and without a
// kubeconfig, uses the files of package local. A kubeconfig asks for the
// cluster's store, which this release does not have yet. A pod without either
// is refused, because node-local addresses in a cluster are duplicates.
//
// It imports netconf, ipam, ipam/local and cnierr of the project.
package main
