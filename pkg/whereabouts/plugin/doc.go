// Package plugin is the IPAM plugin whereabouts. It converts the verbs of CNI to calls of
// an [ipam.Store], and the store's answers to a result. It reads the same configuration as
// the whereabouts project's own plugin. It also assigns the same addresses, apart from the
// one difference that package ipam describes. If the key "allocation" is set, it assigns
// other addresses.
//
// With "store": "local", the addresses are in files of the node (package local). They are
// in files of the node, too, if the call names no pod and the configuration names no
// kubeconfig. With a kubeconfig the addresses are in the cluster (package store, or package
// block if the network has block_size). A call that names a pod is refused if there is
// neither a kubeconfig nor "store": "local", because two nodes would assign the same
// addresses.
//
// A plugin's main:
//
//	p := &plugin.Plugin{Version: version, FlatFiles: ipamconf.WhereaboutsFlatFiles(), Stdout: os.Stdout, Stderr: os.Stderr}
//	skel.PluginMainFuncs(p.Funcs(ctx), cniversion.All, "whereabouts")
package plugin
