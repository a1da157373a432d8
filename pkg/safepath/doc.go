// Package safepath checks that only root can have put there what lies at a path.
// It reads symbolic links and attributes, and opens nothing.
//
// It cannot distinguish root of the node from root of a pod without a user
// namespace, who owns the files that the pod puts into a volume. So the node file
// decides which paths are trusted at all.
package safepath
