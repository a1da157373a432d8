// Package safepath checks that only root can have written the file at a path. It reads
// symbolic links and attributes, and does not open any file.
//
// A pod without a user namespace also has a root, which owns the files that the pod writes
// into a volume. The package cannot distinguish that root from the root of the node. So the
// node file decides which paths are trusted at all.
//
// To check a file before its content is trusted:
//
//	if err := safepath.Check("/etc/rail-cni/node.yaml"); err != nil {
//		return err
//	}
package safepath
