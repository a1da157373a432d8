// Package cluster installs rail-cni in a cluster, and uninstalls it.
//
// [Manifest] makes the objects to install. [Uninstaller] tells the agents of all nodes to
// uninstall, waits until all nodes are done, and then deletes the objects.
//
// Objects are deleted only when all nodes are done, because a node without an agent would keep the
// plugins forever. Nodes do not wait for each other. An interrupted uninstallation may be run
// again, and then continues. Address pools are deleted only if Definitions is set.
//
// To uninstall:
//
//	u := cluster.Uninstaller{Client: client, Namespace: "kube-system", Timeout: time.Minute, Say: say}
//	err := u.Run(ctx)
package cluster
