// Package install puts rail-cni's files on a node, and takes them away again so
// that what was there before is there after, byte for byte.
//
// What it has put where is in one record, below a directory that outlives a
// reboot: for each path the SHA-256 of what was ever ours there, and what was
// there before. The first file of another's that lies at the path is kept with
// mode, owner and time in the same directory; an older version of ours, known by
// the record or by its build information, never is. A file that is not ours is
// never removed: what took our file's place stays.
//
// Each file is put into place whole, by a rename within its directory, and is
// on disk before. The record names a file's content before the file has it, and
// a backup is complete before the file is replaced: killed at any instant, what
// is done again ends in the same state. Several processes may work on one
// record.
//
// Below it, package node installs the plugins on a node, and package cluster the agents
// in a cluster.
package install
