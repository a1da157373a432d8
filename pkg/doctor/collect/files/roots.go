package files

import (
	"errors"
	"path/filepath"
)

// Roots are the roots of sysfs, of procfs and of the node's files.
type Roots struct{ Sys, Proc, Root string }

// HostPath returns the path of a file of the node's root file system.
func (r *Roots) HostPath(path string) string { return filepath.Join(r.Root, path) }

// ErrRoot is the error for facts that only root can read.
var ErrRoot = errors.New("only root can read it; run as root")
