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

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// changes names the system calls that can change something outside of the
// process. [changesFilter] and [tracer.change] check the condition, if there is
// one.
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
	netns *testnet.Netns // in which it runs; nil: that of the test
}

type tracer struct {
	main   int
	groups map[int]int // thread → process
	in     intervention
	outcome
}

// trace runs the program to its end. A thread of its own traces the program's
// threads and children, so several programs may be traced concurrently. It
// goes on until the last of them has ended: a child may outlive the program.
func trace(t *testing.T, p program, in intervention) outcome {
	t.Helper()
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
	type result struct {
		outcome
		error
	}
	results := make(chan result, 1)
	began := time.Now()
	go func() {
		if p.netns == nil {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		} else if err := p.netns.Enter(); err != nil {
			results <- result{error: err}
			return
		}
		tr, err := start(p, files, in)
		if err == nil {
			overdue := time.AfterFunc(hang, func() { _ = syscall.Kill(-tr.main, syscall.SIGKILL) })
			err = tr.follow(true)
			overdue.Stop()
		}
		if err != nil {
			results <- result{error: err}
			return
		}
		results <- result{outcome: tr.outcome}
		_ = tr.follow(false) // an error ends the children with this thread
	}()
	r := <-results
	if r.error != nil {
		t.Fatal(r.error)
	}
	if time.Since(began) > hang {
		t.Errorf("%s hung after %s", filepath.Base(p.args[len(p.args)-1]), r.at)
	}
	for i, text := range []*string{nil, &r.stdout, &r.stderr} {
		if text == nil {
			continue
		}
		data, err := os.ReadFile(files[i].Name())
		if err != nil {
			t.Fatal(err)
		}
		*text = string(data)
	}
	return r.outcome
}

// start starts the program, traced by the calling thread.
func start(p program, files []*os.File, in intervention) (*tracer, error) {
	if os.Geteuid() != 0 { // then seccomp(2) wants it; the program inherits it from this thread
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return nil, err
		}
	}
	process, err := os.StartProcess(p.args[0], p.args, &os.ProcAttr{
		Env: p.env, Files: files, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return nil, err
	}
	pid := process.Pid
	_ = process.Release() // follow reaps it
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return nil, err
	}
	const options = unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
		unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(pid, options); err != nil {
		return nil, err
	}
	if err := stopAtChanges(pid); err != nil {
		return nil, fmt.Errorf("seccomp filter of a traced program: %w", err)
	}
	return &tracer{main: pid, groups: map[int]int{pid: pid}, in: in}, syscall.PtraceCont(pid, 0)
}

// stopAtChanges makes a process that has just been started stop at calls that
// may change something, and at no others: each stop is slow in an emulated
// machine. It makes the process call seccomp(2); its threads, its children and
// the programs that they start have the same filter.
func stopAtChanges(pid int) error {
	var before syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(pid, &before); err != nil {
		return err
	}
	filter := changesFilter()
	// Below the stack's red zone; the first page of it is always mapped.
	at := before.Rsp - 4096
	data := binary.LittleEndian.AppendUint64(nil, uint64(len(filter)))
	data = binary.LittleEndian.AppendUint64(data, at+16) // struct sock_fprog, seccomp(2)
	for _, f := range filter {
		data = binary.LittleEndian.AppendUint16(data, f.Code)
		data = append(data, f.Jt, f.Jf)
		data = binary.LittleEndian.AppendUint32(data, f.K)
	}
	code := make([]byte, 2)
	if _, err := syscall.PtracePeekText(pid, uintptr(before.Rip), code); err != nil {
		return err
	}
	call := before
	call.Orig_rax, call.Rax = ^uint64(0), unix.SYS_SECCOMP
	call.Rdi, call.Rsi, call.Rdx = unix.SECCOMP_SET_MODE_FILTER, 0, at
	_, err := syscall.PtracePokeData(pid, uintptr(at), data)
	if err == nil {
		_, err = syscall.PtracePokeText(pid, uintptr(before.Rip), []byte{0x0f, 0x05}) // SYSCALL
	}
	if err == nil {
		err = syscall.PtraceSetRegs(pid, &call)
	}
	if err == nil {
		err = syscall.PtraceSingleStep(pid)
	}
	if err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	if err := syscall.PtraceGetRegs(pid, &call); err != nil {
		return err
	}
	if call.Rax != 0 {
		return syscall.Errno(-int64(call.Rax))
	}
	if _, err := syscall.PtracePokeText(pid, uintptr(before.Rip), code); err != nil {
		return err
	}
	return syscall.PtraceSetRegs(pid, &before)
}

// changesFilter returns the filter that asks the tracer at [changes] (seccomp(2),
// SECCOMP_RET_TRACE). Of files only those count that are opened to be written,
// of clones only processes.
func changesFilter() (filter []unix.SockFilter) {
	const nr, firstArg = 0, 16 // struct seccomp_data
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// unless skips the next number of instructions if the condition is false.
	unless := func(condition uint16, k uint32, instructions uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | condition, K: k, Jf: instructions}
	}
	end := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	trace, allow := end(unix.SECCOMP_RET_TRACE), end(unix.SECCOMP_RET_ALLOW)
	filter = append(filter, load(nr))
	for number := range changes {
		switch number {
		case unix.SYS_OPENAT:
			filter = append(filter, unless(unix.BPF_JEQ, uint32(number), 4),
				load(firstArg+2*8), unless(unix.BPF_JSET, unix.O_CREAT|unix.O_TRUNC|unix.O_ACCMODE, 1), trace, allow)
		case unix.SYS_CLONE:
			filter = append(filter, unless(unix.BPF_JEQ, uint32(number), 4),
				load(firstArg), unless(unix.BPF_JSET, unix.CLONE_THREAD, 1), allow, trace)
		default:
			filter = append(filter, unless(unix.BPF_JEQ, uint32(number), 1), trace)
		}
	}
	return append(filter, allow)
}

// hang is longer than a plugin may take.
const hang = 90 * time.Second

// follow lets all threads run from stop to stop, including threads that it has
// not seen yet: until the main process has ended, or until none is left.
// Otherwise a child that was being made when its parent was killed would stop
// forever, with all open files of the parent and their locks.
func (tr *tracer) follow(untilMainEnds bool) error {
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
				if untilMainEnds {
					return nil
				}
			}
			continue
		}
		if _, known := tr.groups[tid]; !known {
			tr.groups[tid] = groupOf(tid)
			if tr.at != "" && tr.in.whole && tr.in.errno == 0 {
				_ = syscall.Kill(tr.groups[tid], syscall.SIGKILL)
				continue
			}
		}
		deliver := 0
		switch sig := status.StopSignal(); {
		case sig == syscall.SIGTRAP && status.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
			if untilMainEnds && tr.intervene(tid) {
				continue // it is dying
			}
		case sig != syscall.SIGSTOP && sig != syscall.SIGTRAP:
			deliver = int(sig)
		}
		// The thread may be gone already; the next wait shows it.
		_ = syscall.PtraceCont(tid, deliver)
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

// intervene counts the call that a thread enters, and disturbs it at the nth
// change. It reports whether the thread's process was killed.
func (tr *tracer) intervene(tid int) bool {
	var info callInfo
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if e != 0 {
		return false
	}
	what := tr.change(tid, &info)
	if what == "" || tr.in.errno != 0 && !canFail(info.nr) {
		return false
	}
	if tr.groups[tid] != tr.main {
		what = "IPAM plugin: " + what
	}
	tr.changes++
	tr.all = append(tr.all, what)
	if tr.changes != tr.in.nth {
		return false
	}
	tr.at = what
	if tr.in.errno != 0 {
		fail(tid, tr.in.errno)
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

// fail makes the kernel skip the call that is being entered: it returns the
// error (seccomp(2), SECCOMP_RET_TRACE).
func fail(tid int, errno syscall.Errno) {
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) == nil {
		regs.Orig_rax, regs.Rax = ^uint64(0), uint64(-int64(errno))
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
