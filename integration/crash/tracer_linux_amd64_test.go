package crash

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// changes names the system calls that can change something outside of the
// process. [tracer.change] checks the condition, if there is one.
var changes = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg", unix.SYS_CONNECT: "connect", unix.SYS_SETNS: "setns",
	unix.SYS_RENAME: "rename", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_LINKAT: "linkat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_FLOCK: "flock", unix.SYS_FCHMODAT: "fchmodat",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_EXECVE: "execve", unix.SYS_EXIT_GROUP: "exit",
}

// intervention is what happens at the nth change: the process is killed as it
// enters it, or the call fails with errno and is not carried out.
type intervention struct {
	nth   int // 0: nothing happens
	errno syscall.Errno
	// whole kills all processes together, as the end of a cgroup does.
	// Otherwise the others go on: an IPAM plugin whose caller is gone.
	whole bool
}

// outcome is the outcome of a traced plugin.
type outcome struct {
	changes int    // how many there were
	at      string // the change of the intervention; "" if it was not reached
	ended   bool   // by itself, not killed
	code    int    // exit code, if it ended
	stdout  string
	stderr  string
	all     []string // each change
}

// program is a plugin to be traced.
type program struct {
	args  []string // the path first
	env   []string
	stdin string
	execs int // how many programs args starts in place of itself before the plugin runs
}

type tracer struct {
	main   int
	groups map[int]int // thread → process
	in     intervention
	execs  int
	at     int  // the thread whose call is to fail
	freed  bool // the main process is killed: the others are let go
	outcome
}

// trace runs the program to its end. The calling thread alone traces the
// program's threads and children, so several programs may be traced
// concurrently.
func trace(t *testing.T, p program, in intervention) outcome {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir := t.TempDir()
	files := make([]*os.File, 3)
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	if _, err := files[0].WriteString(p.stdin); err != nil {
		t.Fatal(err)
	}
	if _, err := files[0].Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	process, err := os.StartProcess(p.args[0], p.args, &os.ProcAttr{
		Env: p.env, Files: files, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	pid := process.Pid
	_ = process.Release() // it is reaped below
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
		unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(pid, options); err != nil {
		t.Fatal(err)
	}
	tr := &tracer{main: pid, groups: map[int]int{pid: pid}, in: in, execs: p.execs}
	overdue := time.AfterFunc(hang, func() { _ = syscall.Kill(-pid, syscall.SIGKILL) })
	defer overdue.Stop()
	began := time.Now()
	if err := syscall.PtraceSyscall(pid, 0); err != nil {
		t.Fatal(err)
	}
	if err := tr.follow(); err != nil {
		t.Fatal(err)
	}
	if time.Since(began) > hang {
		t.Errorf("%s hung after %s", filepath.Base(p.args[len(p.args)-1]), tr.outcome.at)
	}
	for i, text := range []*string{nil, &tr.stdout, &tr.stderr} {
		if text == nil {
			continue
		}
		data, err := os.ReadFile(files[i].Name())
		if err != nil {
			t.Fatal(err)
		}
		*text = string(data)
	}
	return tr.outcome
}

// hang is longer than a plugin may take.
const hang = 90 * time.Second

// follow lets all threads run from system call to system call until none is
// left, including threads that it has not seen yet. Otherwise a child that was
// being made when its parent was killed would stop forever, with all open files
// of the parent and their locks.
func (tr *tracer) follow() error {
	for {
		var status syscall.WaitStatus
		// Not for any child: this thread may have started another test's too.
		tid, err := syscall.Wait4(-tr.main, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			return nil
		case err != nil:
			return err
		}
		if status.Exited() || status.Signaled() {
			delete(tr.groups, tid)
			if tid == tr.main {
				tr.ended, tr.code = status.Exited(), status.ExitStatus()
				tr.letGo()
			}
			continue
		}
		if _, known := tr.groups[tid]; !known {
			tr.groups[tid] = groupOf(tid)
			if tr.outcome.at != "" && tr.in.whole && tr.in.errno == 0 {
				_ = syscall.Kill(tr.groups[tid], syscall.SIGKILL)
				continue
			}
		}
		if tr.freed {
			_ = syscall.PtraceDetach(tid)
			delete(tr.groups, tid)
			continue
		}
		deliver := 0
		switch sig := status.StopSignal(); {
		case sig == syscall.SIGTRAP|0x80:
			if tr.stopped(tid) {
				continue // it is dying
			}
		case sig == syscall.SIGTRAP:
			if status.TrapCause() == unix.PTRACE_EVENT_EXEC && tid == tr.main {
				tr.execs--
			}
		case sig != syscall.SIGSTOP:
			deliver = int(sig)
		}
		// The thread may be gone already; the next wait shows it.
		_ = syscall.PtraceSyscall(tid, deliver)
	}
}

// letGo detaches from all remaining threads when the main process has ended. A
// thread can be detached only while it is stopped: a signal that Go programs
// ignore stops it.
func (tr *tracer) letGo() {
	tr.freed = true
	for tid, group := range tr.groups {
		if unix.Tgkill(group, tid, unix.SIGURG) != nil {
			delete(tr.groups, tid)
		}
	}
}

func groupOf(tid int) int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	for line := range strings.Lines(string(data)) {
		if text, is := strings.CutPrefix(line, "Tgid:"); is {
			var group int
			if _, err := fmt.Sscan(text, &group); err == nil {
				return group
			}
		}
	}
	return tid
}

// callInfo is struct ptrace_syscall_info (ptrace(2), PTRACE_GET_SYSCALL_INFO).
type callInfo struct {
	op   uint8
	_    [3]uint8
	_    uint32
	_, _ uint64
	nr   uint64
	args [6]uint64
	_    [2]uint64
}

// stopped handles a thread at the entry or exit of a system call, and reports
// whether its process was killed.
func (tr *tracer) stopped(tid int) bool {
	var info callInfo
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if e != 0 {
		return false
	}
	if info.op == unix.PTRACE_SYSCALL_INFO_EXIT && tr.at == tid {
		tr.at = 0
		setResult(tid, tr.in.errno)
		return false
	}
	if info.op != unix.PTRACE_SYSCALL_INFO_ENTRY || tr.execs > 0 {
		return false
	}
	what := tr.change(tid, &info)
	if what == "" || tr.in.errno != 0 && !canFail(info.nr) {
		return false
	}
	if tr.groups[tid] != tr.main {
		what = "IPAM plugin: " + what
	}
	tr.outcome.changes++
	tr.all = append(tr.all, what)
	if tr.outcome.changes != tr.in.nth {
		return false
	}
	tr.outcome.at = what
	if tr.in.errno != 0 {
		tr.at = tid
		skip(tid)
		return false
	}
	killed := map[int]bool{tr.groups[tid]: true}
	for _, group := range tr.groups {
		killed[group] = killed[group] || tr.in.whole
	}
	for group, dies := range killed {
		if dies {
			_ = syscall.Kill(group, syscall.SIGKILL)
		}
	}
	return true
}

// canFail reports whether the plugin sees an error of the call: a process
// cannot fail to end, and Go aborts if no thread can be made.
func canFail(nr uint64) bool {
	return nr != unix.SYS_EXIT_GROUP
}

// skip makes the kernel skip the call that is being entered.
func skip(tid int) {
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) == nil {
		regs.Orig_rax = ^uint64(0)
		_ = syscall.PtraceSetRegs(tid, &regs)
	}
}

func setResult(tid int, errno syscall.Errno) {
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) == nil {
		regs.Rax = uint64(-int64(errno))
		_ = syscall.PtraceSetRegs(tid, &regs)
	}
}

// change names the call if it changes something.
func (tr *tracer) change(tid int, c *callInfo) string {
	name := changes[c.nr]
	switch c.nr {
	case unix.SYS_OPENAT:
		path := text(tid, c.args[1])
		makes := c.args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0
		if !makes && (c.args[2]&unix.O_ACCMODE == unix.O_RDONLY || !strings.HasPrefix(path, "/proc/sys/")) {
			return ""
		}
		return name + " " + path
	case unix.SYS_WRITE:
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, c.args[0]))
		if c.args[0] == 2 || strings.HasPrefix(to, "anon_inode:") {
			return "" // a log, and Go's wakeups of threads
		}
		return name + " " + kindOf(to)
	case unix.SYS_SENDTO:
		return netlinkChange(tid, c, name)
	case unix.SYS_UNLINKAT, unix.SYS_MKDIRAT:
		return name + " " + text(tid, c.args[1])
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT:
		return name + " " + text(tid, c.args[3])
	case unix.SYS_SYMLINKAT:
		return name + " " + text(tid, c.args[2])
	case unix.SYS_CLONE:
		if c.args[0]&unix.CLONE_THREAD != 0 {
			return ""
		}
	case unix.SYS_CLONE3:
		if b := read(tid, c.args[0], 8); len(b) == 8 && binary.LittleEndian.Uint64(b)&unix.CLONE_THREAD != 0 {
			return ""
		}
	}
	return name
}

// kindOf removes the parts of a descriptor's path that differ each time.
func kindOf(path string) string {
	if kind, _, found := strings.Cut(path, ":["); found {
		return kind
	}
	return filepath.Base(path)
}

// rdmaChanges are the requests of RDMA netlink that change something: those
// whose names in enum rdma_nldev_command end with SET, NEWLINK, DELLINK, DEL,
// NEWDEV and DELDEV.
var rdmaChanges = []uint16{2, 3, 4, 7, 16, 18, 26, 27}

// netlinkChange leaves out requests that only read: of rtnetlink those of kind
// GET (the second of each four types), and others than rdmaChanges.
func netlinkChange(tid int, c *callInfo, name string) string {
	family, header := read(tid, c.args[4], 2), read(tid, c.args[1], 8)
	if len(family) < 2 || binary.LittleEndian.Uint16(family) != unix.AF_NETLINK || len(header) < 8 {
		return name
	}
	kind := binary.LittleEndian.Uint16(header[4:])
	const nldev = 5 << 10 // RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, 0)
	switch {
	case kind < nldev && kind%4 == 2, kind >= nldev && !slices.Contains(rdmaChanges, kind-nldev):
		return ""
	case kind >= nldev:
		return fmt.Sprintf("%s RDMA netlink %d", name, kind-nldev)
	}
	return fmt.Sprintf("%s netlink %d", name, kind)
}

// read returns n bytes of the thread's memory, or none.
func read(tid int, at uint64, n int) []byte {
	if at == 0 {
		return nil
	}
	buf := make([]byte, n)
	got, err := unix.ProcessVMReadv(tid, []unix.Iovec{{Base: &buf[0], Len: uint64(n)}}, []unix.RemoteIovec{{Base: uintptr(at), Len: n}}, 0)
	if err != nil || got < 0 {
		return nil
	}
	return buf[:got]
}

// text returns the string that a thread's pointer points at.
func text(tid int, at uint64) string {
	b := read(tid, at, 200)
	if len(b) == 0 { // it lies at the end of readable memory
		b = read(tid, at, 16)
	}
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
