package scratch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"sync"
	"syscall"
)

// owner is a process that may have ended.
type owner struct {
	pid   int
	began uint64 // in clock ticks since boot
	space uint64 // inode of its PID namespace
}

// initialSpace is the inode of the machine's own PID namespace (linux/nsfs.h,
// PID_NS_INIT_INO), which names leave out: paths of sockets are short.
const initialSpace = 0xEFFFFFFC

// firstInode is the lowest inode number of a namespace (PROC_DYNAMIC_FIRST in
// fs/proc/generic.c). Names contain the difference to it, which has three or four digits.
const firstInode = 0xF0000000

// ownedName matches the names of this package.
var ownedName = regexp.MustCompile(`^rail-(\d+)\.(\d+)(?:\.(\d+))?(?:-|$)`)

// prefix returns what the names begin with that are this owner's.
func (o owner) prefix() string {
	if o.space == initialSpace {
		return fmt.Sprintf("rail-%d.%d", o.pid, o.began)
	}
	return fmt.Sprintf("rail-%d.%d.%d", o.pid, o.began, o.space^firstInode)
}

// ownerOf returns the owner in a name, and false if it has none.
func ownerOf(name string) (o owner, ok bool) {
	m := ownedName.FindStringSubmatch(name)
	if m == nil {
		return o, false
	}
	o.space = initialSpace
	pid, err := strconv.ParseInt(m[1], 10, 32)
	began, beganErr := strconv.ParseUint(m[2], 10, 64)
	if m[3] != "" {
		short, spaceErr := strconv.ParseUint(m[3], 10, 64)
		o.space, err = short^firstInode, errors.Join(err, spaceErr)
	}
	o.pid, o.began = int(pid), began
	return o, errors.Join(err, beganErr) == nil
}

// self is this process. It fails where /proc is missing, or that of another PID namespace, as
// in a node's first process: nothing can be said of other processes there.
var self = sync.OnceValues(func() (owner, error) {
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/pid", &st); err != nil {
		return owner{}, fmt.Errorf("find this process's PID namespace: %w", err)
	}
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return owner{}, err
	}
	if link != strconv.Itoa(os.Getpid()) {
		return owner{}, fmt.Errorf("/proc is that of another PID namespace: it has this process as %q, and it is %d", link, os.Getpid())
	}
	o, running, err := process(os.Getpid())
	if err == nil && !running {
		err = errors.New("this process has ended, according to /proc/self/stat")
	}
	o.space = st.Ino
	return o, err
})

// process returns the process of a PID in this PID namespace, and whether it runs.
func process(pid int) (o owner, running bool, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return owner{pid: pid}, false, nil
	}
	if err != nil {
		return owner{}, false, err
	}
	// proc_pid_stat(5). The second field, the name, may have blanks and parentheses.
	const state, threads, starttime = 0, 17, 19 // of the fields behind it
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= starttime {
		return owner{}, false, fmt.Errorf("/proc/%d/stat has too few fields: %q", pid, text)
	}
	began, err := strconv.ParseUint(string(fields[starttime]), 10, 64)
	// The first thread of a process may end before the others do.
	ended := bytes.ContainsAny(fields[state], "ZX") && len(fields[threads]) == 1 && fields[threads][0] <= '1'
	return owner{pid: pid, began: began}, !ended, err
}

// gone reports whether the owner has ended, as this process sees it.
func (o owner) gone() bool {
	me, err := self()
	if err != nil || o.space != me.space {
		return false
	}
	now, running, err := process(o.pid)
	return err == nil && (!running || now.began != o.began)
}
