// Package process runs other projects' programs for the tests: servers that
// write a log, and that end with the process that started them, even if that
// one is killed. It imports nothing of ours.
package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Spec describes a process to run.
type Spec struct {
	Name string   // for messages
	Log  string   // path of the file that stdout and stderr are appended to
	Args []string // the binary's path and its arguments
	// Env is added to PATH and HOME. Nothing else is inherited, because etcd
	// and Go programs take options from there.
	Env []string
	// Enter, if not nil, calls start on a thread that has been prepared, for
	// example by entering namespaces; the thread runs nothing else, and ends
	// with the process.
	Enter func(start func() error) error
	// Cloneflags are the process' new namespaces (clone(2)).
	Cloneflags uintptr
	// Outlives keeps the kernel from killing the process when this one ends. It
	// is for a process that ends by itself, or with the PID namespace that it
	// enters: in an entered PID namespace the child cannot see whether its
	// parent still exists, and Go would kill it at once.
	Outlives bool
	Stdin    *os.File
}

// Process is a child process.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended and has been waited for
}

// Start starts a process, in a process group of its own: an interrupt from the
// terminal goes to the process that started it, which ends its children in
// order.
func Start(s Spec) (*Process, error) {
	out, err := os.OpenFile(s.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &Process{name: s.Name, log: s.Log, cmd: exec.Command(s.Args[0], s.Args[1:]...), gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if s.Stdin != nil {
		p.cmd.Stdin = s.Stdin
	}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, s.Env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: s.Cloneflags, Setpgid: true}
	if !s.Outlives {
		p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}

	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the child
		// ends (prctl(2), PR_SET_PDEATHSIG), and Go may end threads at any
		// time: this one must stay until the child is gone. It is never
		// unlocked, so that it ends with this goroutine: nothing else may run
		// in the namespaces that it may have entered.
		runtime.LockOSThread()
		var err error
		if s.Enter != nil {
			err = s.Enter(p.cmd.Start)
		} else {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in its ProcessState
			close(p.gone)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.Name, err)
	}
	return p, nil
}

// Pid returns the process ID in this process' PID namespace.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal. It fails if the process has ended.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Pause stops the process without ending it (SIGSTOP), and waits until all its threads are
// stopped: on a busy machine they go on for some milliseconds.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := running(p.Pid())
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not stopped: %d threads run", p.name, n)
		}
	}
}

// Resume lets a paused process go on (SIGCONT).
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// running returns the number of threads that are neither stopped nor ended.
func running(pid int) (n int, err error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		_, state, _ := bytes.Cut(stat, []byte(") ")) // proc_pid_stat(5)
		if !bytes.HasPrefix(state, []byte("T")) {
			n++
		}
	}
	return n, err
}

// Kill ends the process (SIGKILL), also one that is stopped or has ended, and
// waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.gone
}

// Gone returns a channel that is closed when the process has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Ended returns an error with the end of the log if the process has ended, else
// nil.
func (p *Process) Ended() error {
	select {
	case <-p.gone:
		return fmt.Errorf("%s ended (%s):\n%s", p.name, p.cmd.ProcessState, Tail(p.log, 20))
	default:
		return nil
	}
}

// Poll calls try until it succeeds, the process has ended, or patience or the
// context end. One try may take 2 s. It pauses four times as long as the try took, from 20 ms
// to 1 s.
func (p *Process) Poll(ctx context.Context, patience time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		began := time.Now()
		one, cancelOne := context.WithTimeout(ctx, 2*time.Second)
		err := try(one)
		cancelOne()
		if err == nil {
			return nil
		}
		if err := p.Ended(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w)", p.name, err, ctx.Err())
		case <-time.After(min(max(20*time.Millisecond, wait.Rest(time.Since(began))), time.Second)):
		}
	}
}

// Tail returns the last n lines of a file.
func Tail(path string, n int) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}
