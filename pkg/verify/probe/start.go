package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// Child is a prober in a separate process. Close ends the process.
type Child struct {
	cancel context.CancelFunc
	ended  chan struct{}
	lines  *verify.Lines
	err    bytes.Buffer // the stderr of the process; it is read only after the process has ended
}

// Start runs a program in the network namespace at path. The program must call [Serve] with its
// stdin and stdout. The program ends when Close is called, when ctx ends, and when this process
// ends or is killed. In the last case the kernel kills the program, and the program's stdin ends.
func Start(ctx context.Context, path, program string, args ...string) (*Child, error) {
	netns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &Child{cancel: cancel, ended: make(chan struct{})}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = &c.err
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		cancel()
		netns.Close()
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		defer close(c.ended)
		defer netns.Close()
		// The child starts in the network namespace of the thread that starts it. Pdeathsig also
		// depends on this thread, so the thread must stay until the child has ended.
		err := netns.Do(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			_ = cmd.Wait() // an error only says that the process was killed
			return nil
		})
		if err != nil {
			select {
			case started <- err:
			default: // the thread could not return to its namespace, so it ended
			}
		}
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, fmt.Errorf("run a prober in netns %s: %w", path, err)
	}
	c.lines = verify.NewLines(in, out, maxLine)
	return c, nil
}

// Do sends a request to the child and returns the answer. If ctx ends, the child is killed.
func (c *Child) Do(ctx context.Context, r *verify.Request) (*verify.Answer, error) {
	defer context.AfterFunc(ctx, c.cancel)()
	a, err := c.lines.Do(r)
	if !errors.Is(err, verify.ErrEnded) {
		return a, err
	}
	c.Close()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("the prober ended: %s", strings.TrimSpace(c.err.String()))
}

// Close kills the child and waits until it has ended.
func (c *Child) Close() {
	c.cancel()
	<-c.ended
}
