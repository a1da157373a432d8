// Package parent finds the parent: the NIC of the host on which a plugin makes an interface for a
// pod. It finds the parent by the name in the configuration, by the device that the pod was
// allocated, by the rail of the NIC, or by the default route. The configuration calls the parent
// "master", as upstream's plugins do.
//
//	found, err := parent.Of(conf, tx.Node, tx.Node.Netns)
package parent
