package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// New makes a network namespace without a path. The namespace ends when the last file that is open
// on it is closed. Its links have no IPv6, so they send nothing when they are set up.
func New() (n *Netns, err error) {
	var all sync.WaitGroup
	all.Go(func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with this function
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
			return
		}
		err = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the kernel has no IPv6
		}
		if err == nil {
			n, err = Current()
		}
	})
	all.Wait()
	return n, err
}
