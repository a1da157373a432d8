// Package nodefile is the administrator's node file: which NICs and paths networks may name,
// the rails and device pools of the node, and what its pods get. The authors of networks
// cannot change it.
//
// Unknown keys are errors, unlike in the configurations of package netconf: a mistyped key
// must not open more than the administrator meant. A node without the file permits each NIC
// and the usual paths.
//
// To ask whether a network may name a path:
//
//	node, err := nodefile.Read(nodefile.Path())
//	if err == nil {
//		err = node.CheckPath(nodefile.KeyStateDir, "/run/other")
//	}
package nodefile
