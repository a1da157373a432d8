// Package safepath checks that only root can have written the file at a path.
// It reads symbolic links and attributes, and opens nothing.
//
// It cannot distinguish root of the node from root of a pod without a user
// namespace, who owns the files that the pod writes into a volume. So the node
// file decides which paths are trusted at all.
//
// To check a file before its content is trusted:
//
//	if err := safepath.Check("/etc/rail-cni/node.yaml"); err != nil {
//		return err
//	}
package safepath
