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

// Child is a prober in a process of its own. Close ends it.
type Child struct {
	cancel context.CancelFunc
	ended  chan struct{}
	lines  *verify.Lines
	err    bytes.Buffer // the process's stderr; read once it ended
}

// Start runs a program in the network namespace at path. The program must call [Serve] with
// its stdin and stdout. It ends with Close, with ctx, and when this process ends or is killed:
// then the kernel kills it, and its stdin ends.
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
		// The child has the namespace of the thread that starts it. Pdeathsig is about this
		// thread as well, so it stays until the child has ended.
		err := netns.Do(func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			_ = cmd.Wait() // that it was killed is no news
			return nil
		})
		if err != nil {
			select {
			case started <- err:
			default: // the thread did not come back to its namespace, and ended
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

// Do lets the child answer a request. If ctx ends the child is killed.
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

// Close kills the child, and waits for its end.
func (c *Child) Close() {
	c.cancel()
	<-c.ended
}
