// Package cluster installs rail-cni in a cluster, and takes it out again.
//
// [Manifest] makes the objects to install. [Uninstaller] has the agent of every node
// take away what it has installed there, waits for all of them, and then deletes the
// objects.
//
// An object is deleted only when all nodes are done: without its agent a node would
// keep the plugins for good. Nodes do not wait for each other. Whatever was
// interrupted may be run again, and goes on where it stopped. Address pools stay
// unless their definitions are to go too.
//
// To uninstall:
//
//	u := cluster.Uninstaller{Client: client, Namespace: "kube-system", Timeout: time.Minute, Say: say}
//	err := u.Run(ctx)
package cluster
