// Package parent finds the NIC of the host on which a plugin makes an interface for a pod: by the
// name in the configuration, by its rail, by the device that the pod was allocated, or as that of the
// default route. The configuration calls it the master, as upstream's plugins do.
//
//	found, err := parent.Of(conf, tx.Node, tx.Node.Netns)
package parent
