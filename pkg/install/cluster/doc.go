// Package cluster installs rail-cni in a cluster, and uninstalls it.
//
// [Manifest] makes the objects to install. [Uninstaller] tells the agent of every node
// to uninstall, waits for all of them, and then deletes the objects.
//
// Objects are deleted only when all nodes are done: a node without an agent would keep
// the plugins for good. Nodes do not wait for each other. An interrupted uninstallation
// may be run again, and continues. Address pools stay unless Definitions is set.
//
// To uninstall:
//
//	u := cluster.Uninstaller{Client: client, Namespace: "kube-system", Timeout: time.Minute, Say: say}
//	err := u.Run(ctx)
package cluster
