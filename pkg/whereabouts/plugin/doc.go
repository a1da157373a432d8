// Package plugin is the IPAM plugin whereabouts: it converts the verbs of CNI
// to calls of an [ipam.Store], and the store's answers to a result. It reads
// the configuration of the plugin of the same name and assigns the same
// addresses (see package ipam for the one difference), unless the key "allocation"
// asks for others.
//
// With "store": "local", or without a pod and a kubeconfig, addresses are in
// files of the node (package local). With a kubeconfig they are in the cluster
// (package store). A pod without either is refused, because two nodes would
// assign the same addresses.
//
// A plugin's main:
//
//	p := &plugin.Plugin{Version: version, FlatFiles: netconf.WhereaboutsFlatFiles(), Stdout: os.Stdout, Stderr: os.Stderr}
//	skel.PluginMainFuncs(p.Funcs(ctx), cniversion.All, "whereabouts")
package plugin
