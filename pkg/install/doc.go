// Package install installs rail-cni's files on a node, and removes them again
// so that the node is as before, byte for byte.
//
// One record, in a directory that survives a reboot, has for each path the
// SHA-256 of all our contents and the backup of another's file. The first file
// of another's at the path is backed up with mode, owner and time in the same
// directory; an older version of ours, known by the record or by its build
// information, is not. A file that is not ours is never removed: a file that
// replaced ours stays.
//
// Each file is replaced as a whole, by a rename within its directory, and is on
// disk before that. The record names a file's content before the file has it,
// and a backup is complete before the file is replaced: a process that was
// killed at any instant can be repeated with the same result. Several processes
// may use one record.
//
// Package node below it installs the plugins on a node, package cluster the
// agents in a cluster.
//
// To install a file, and to remove it later:
//
//	record := install.Open(install.DefaultDir)
//	outcome, err := record.Put(ctx, install.File{Path: "/opt/cni/bin/macvlan", Source: own, Mode: 0o755})
//	…
//	outcome, err = record.Remove("/opt/cni/bin/macvlan")
package install
