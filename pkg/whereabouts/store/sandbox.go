package store

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// sandbox is the network namespace of the pod that an ADD is for.
type sandbox struct {
	path string
	// file is what path led to at first; nil if that was not a namespace. Nothing
	// is known of the sandbox then.
	file fs.FileInfo
	// born is when the namespace was made, by this node's clock; zero if unknown.
	born time.Time
}

// openSandbox returns the sandbox whose namespace path leads to.
func openSandbox(path string) sandbox {
	s := sandbox{path: path}
	var at unix.Statfs_t
	if unix.Statfs(path, &at) != nil || at.Type != unix.NSFS_MAGIC {
		return s
	}
	file, err := os.Stat(path)
	if err != nil {
		return s
	}
	s.file = file
	// The kernel sets the times when it makes the inode (fs/nsfs.c,
	// simple_inode_init_ts). A bind mount keeps the inode. Without one the kernel
	// makes it again for each call, and this is the time of the call.
	if is, ok := file.Sys().(*syscall.Stat_t); ok {
		s.born = time.Unix(is.Ctim.Unix())
	}
	return s
}

// gone reports whether the path no longer leads to the namespace. Only this
// process can ask: another one may have other mounts.
func (s sandbox) gone() bool {
	if s.file == nil {
		return false
	}
	now, err := os.Stat(s.path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(s.file, now)
}

// goneError returns the error of an ADD whose sandbox is gone.
func (s sandbox) goneError() error {
	return failure.WithCure(failure.New(failure.InvalidNetns, "the network namespace %s is gone", s.path),
		"nothing to do: the pod's sandbox was ended")
}
