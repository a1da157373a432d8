// Package sandbox reports whether the network namespace of an ADD's pod still exists. An ADD that
// waited for a server must not hand out an address to a pod that has ended meanwhile.
package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Sandbox is the network namespace of an ADD's pod.
type Sandbox struct {
	Path string
	// file identifies the file at path when the call began. It is nil if that file was not
	// a namespace. Then nothing is known about the sandbox.
	file fs.FileInfo
	// Born is the creation time of the namespace, by this node's clock. It is zero if that
	// time is unknown.
	Born time.Time
}

// Open returns the sandbox at path.
func Open(path string) Sandbox {
	s := Sandbox{Path: path}
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Type != unix.NSFS_MAGIC {
		return s
	}
	file, err := os.Stat(path)
	if err != nil {
		return s
	}
	s.file = file
	// The kernel sets the times when it makes the inode (fs/nsfs.c,
	// simple_inode_init_ts). A bind mount keeps the inode. Without a bind mount the
	// kernel makes the inode again for each call, and born is the time of that call.
	if is, ok := file.Sys().(*syscall.Stat_t); ok {
		s.Born = time.Unix(is.Ctim.Unix())
	}
	return s
}

// Gone reports whether the path no longer leads to the namespace. Only this process can
// find that out, because another process may have other mounts.
func (s Sandbox) Gone() bool {
	if s.file == nil {
		return false
	}
	now, err := os.Stat(s.Path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(s.file, now)
}

// GoneError returns the error of an ADD whose sandbox is gone.
func (s Sandbox) GoneError() error {
	return failure.New(failure.InvalidNetns, "the network namespace %s is gone", s.Path).
		Cure("nothing to do: the pod's sandbox was ended")
}

// Gone returns a function that returns an error once the network namespace that is now at
// netns is gone. The function always returns nil if there is no namespace at netns.
func Gone(netns string) func() error {
	s := Open(netns)
	return func() error {
		if s.Gone() {
			return s.GoneError()
		}
		return nil
	}
}
