package controlplane

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child that dies with this process.
type process struct {
	name string
	log  string // path of what it writes to stdout and stderr
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended and has been waited for
}

// launch starts a binary. Its output is appended to the file log; it inherits
// no environment, because etcd and Go programmes take options from there.
func launch(name, log, binary string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: name, log: log, cmd: exec.Command(binary, args...), gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the child
		// ends (prctl(2), PR_SET_PDEATHSIG), and Go ends threads as it likes:
		// this one has to stay until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in its ProcessState
			close(p.gone)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// kill ends the process, also one that is paused, and waits until it has gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.gone
}

// ended gives an error with the end of the log when the process has ended.
func (p *process) ended() error {
	select {
	case <-p.gone:
		return fmt.Errorf("%s ended (%s):\n%s", p.name, p.cmd.ProcessState, tail(p.log, 20))
	default:
		return nil
	}
}

// tail gives the last n lines of a file.
func tail(path string, n int) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}
