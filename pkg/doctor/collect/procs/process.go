package procs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// process is a process of the node.
type process struct {
	pid   int
	comm  string // cut to 15 bytes by the kernel
	netns uint64 // the inode of its network namespace, 0 if the process has ended
}

// Reader reads the processes of a node, and the containers that they are in.
type Reader struct {
	files.Roots
	Processes func() (*Processes, error) // they are listed once
}

// NewReader returns a reader below the roots.
func NewReader(r files.Roots) *Reader {
	c := &Reader{Roots: r}
	c.Processes = sync.OnceValues(c.scanProcesses)
	return c
}

// Processes are the processes that this process can see.
type Processes struct {
	list []process
	// all is true if the list contains every process of the node.
	all bool
	// unread is the reason why some processes in containers have no netns in the list.
	unread error
}

// InitPIDNamespace is the inode of the first PID namespace (PROC_PID_INIT_INO).
const InitPIDNamespace = "pid:[4026531836]"

// scanProcesses lists the processes. It returns an error if the mount of /proc hides the processes
// of other users.
func (c *Reader) scanProcesses() (*Processes, error) {
	names, err := files.Names(c.Proc)
	if err != nil {
		return nil, err
	}
	if _, err := os.ReadFile(filepath.Join(c.Proc, "1/comm")); err != nil {
		return nil, fmt.Errorf("the processes of other users are hidden (hidepid): %w", err)
	}
	pidns, err := os.Readlink(filepath.Join(c.Proc, "self/ns/pid"))
	p := &Processes{all: err == nil && pidns == InitPIDNamespace}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		comm, err := files.ReadText(filepath.Join(c.Proc, name, "comm"))
		if err != nil {
			continue // it has ended
		}
		one := process{pid: pid, comm: comm}
		target, err := os.Readlink(filepath.Join(c.Proc, name, "ns/net"))
		switch {
		case err == nil:
			one.netns, _ = strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(target, "net:["), "]"), 10, 64)
		case errors.Is(err, fs.ErrPermission) && c.mayBeInContainer(pid):
			p.unread = err
		}
		p.list = append(p.list, one)
	}
	slices.SortFunc(p.list, func(a, b process) int { return a.pid - b.pid })
	return p, nil
}

// mayBeInContainer reports whether the process is or may be in the cgroup of a container.
func (c *Reader) mayBeInContainer(pid int) bool {
	text, err := files.ReadText(c.procPath(pid, "cgroup"))
	return err != nil && !errors.Is(err, fs.ErrNotExist) || containerID.MatchString(text)
}

// errOtherPIDs is the error for facts about processes that may be hidden.
var errOtherPIDs = errors.New("this process runs in its own PID namespace and cannot see all processes; run it in the host's PID namespace (hostPID: true)")

// ErrContained is the error of facts about files that a container may have of its own.
var ErrContained = errors.New("this process may be in a container that does not have the node's files; run it in the host's mount namespace")

// Contained reports whether the files that this process sees may belong to a container and not to
// the node.
func (c *Reader) Contained() bool {
	if c.Root != "/" {
		return false // the caller has said where the node's files are
	}
	self, err := os.Readlink(filepath.Join(c.Proc, "self/ns/mnt"))
	first, firstErr := os.Readlink(filepath.Join(c.Proc, "1/ns/mnt")) // only root may read it
	pids, pidErr := os.Readlink(filepath.Join(c.Proc, "self/ns/pid"))
	return err == nil && firstErr == nil && self != first || pidErr != nil || pids != InitPIDNamespace
}

// Runs reports whether a process with one of these names is running.
func (p *Processes) Runs(names ...string) (bool, error) {
	if slices.ContainsFunc(p.list, func(q process) bool { return slices.Contains(names, q.comm) }) {
		return true, nil
	}
	if !p.all {
		return false, errOtherPIDs
	}
	return false, nil
}

// daemons are the programs whose children inherit their limits.
var daemons = []string{"containerd", "kubelet", "dockerd", "crio"}

// DaemonLimits returns the limits of the daemons that are running.
func (c *Reader) DaemonLimits(context.Context) ([]fact.Memlock, error) {
	processes, err := c.Processes()
	if err != nil {
		return nil, err
	}
	if _, err := processes.Runs(daemons...); err != nil {
		return nil, err
	}
	var found []fact.Memlock
	for _, p := range processes.list {
		if !slices.Contains(daemons, p.comm) {
			continue
		}
		limit, err := c.memlock(p.pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		limit.Process = p.comm
		found = append(found, limit)
	}
	return found, nil
}

// memlock returns the soft and hard limits of locked memory of a process.
func (c *Reader) memlock(pid int) (fact.Memlock, error) {
	name := filepath.Join(c.Proc, strconv.Itoa(pid), "limits")
	text, err := files.ReadText(name)
	if err != nil {
		return fact.Memlock{}, err
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "Max locked memory")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		soft, err := limitOf(fields[0])
		hard, hardErr := limitOf(fields[1])
		return fact.Memlock{PID: pid, Soft: soft, Hard: hard}, errors.Join(err, hardErr)
	}
	return fact.Memlock{}, fmt.Errorf("%s has no line \"Max locked memory\"", name)
}

func limitOf(text string) (int64, error) {
	if text == "unlimited" {
		return fact.Unlimited, nil
	}
	return strconv.ParseInt(text, 10, 64)
}
