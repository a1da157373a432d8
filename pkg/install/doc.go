// Package install installs rail-cni's files on a node. It can remove them again and restore the
// node's earlier files, byte for byte.
//
// There is one record, in a directory that survives a reboot. For each path, the record has the
// SHA-256 of every content that rail-cni has installed there, and the backup of the file that was
// there before. If the file at a path is not rail-cni's, it is backed up in the record's directory,
// with its mode, owner and time. An older version of rail-cni's own file is not backed up. It is
// recognized by the record or by its build information. A file that is not rail-cni's is never
// removed. So a file that has replaced rail-cni's file stays.
//
// Each file is written to disk completely, and then replaces the old file by a rename within its
// directory. The record names the new content before the file has it, and a backup is complete
// before the file is replaced. So if a process is killed at any moment, it can be repeated with the
// same result. Several processes may use the same record.
//
// The package node below this directory installs the plugins on a node. The package cluster
// installs the agents in a cluster.
//
// To install a file, and to remove it later:
//
//	record := install.Open(install.DefaultDir)
//	outcome, err := record.Put(ctx, install.File{Path: "/opt/cni/bin/macvlan", Source: own, Mode: 0o755})
//	…
//	outcome, err = record.Remove("/opt/cni/bin/macvlan")
package install
