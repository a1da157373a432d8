// Package nodefile reads the administrator's node file. The file defines which NICs and paths
// networks may name, the rails and device pools of the node, and what the pods of the node get.
// The authors of networks cannot change the file.
//
// An unknown key is an error, unlike in the configurations of package netconf, because a mistyped
// key must not permit more than the administrator meant. A node without the file permits every NIC
// and the usual paths.
//
// To ask whether a network may name a path:
//
//	node, err := nodefile.Read(nodefile.Path())
//	if err == nil {
//		err = node.CheckPath(nodefile.KeyStateDir, "/run/other")
//	}
package nodefile
