package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

const (
	maxAnswer  = 16 << 20         // the maximum size of an answer, in bytes
	answerTime = 20 * time.Second // the time limit of an answer, in addition to the time of the measurement
	rdmaTime   = 40 * time.Second // the time limit of an answer about RDMA tests, which have their own time limits
	beat       = Idle / 3         // the time between two requests to a prober that has nothing to do
)

// session is a prober in a pod.
type session struct {
	busy   sync.Mutex // held during a request
	lines  *verify.Lines
	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error // set before ended is closed
}

// attach connects to the prober in a running pod. The session ends when ctx ends.
func attach(ctx context.Context, client *kube.Client, namespace, pod string) *session {
	ctx, cancel := context.WithCancelCause(ctx)
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	s := &session{lines: verify.NewLines(inWrite, outRead, maxAnswer), cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		err := client.Attach(ctx, namespace, pod, container, inRead, outWrite)
		s.err = cmp.Or(err, fmt.Errorf("the prober in pod %s/%s ended", namespace, pod))
		cancel(s.err)
		_, _ = inRead.CloseWithError(s.err), outWrite.CloseWithError(s.err)
	}()
	go s.keep(ctx)
	return s
}

// keep sends a request to the prober from time to time, because the prober ends if it gets no
// requests.
func (s *session) keep(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if s.busy.TryLock() { // if the lock is held, the prober has a request and is not idle
				_, _ = s.do(ctx, &verify.Request{Alive: true}) // if the prober has ended, the next request returns the error
				s.busy.Unlock()
			}
		}
	}
}

// Do sends a request to the prober and returns the answer. If ctx ends, or if the prober does not
// answer in time, the session ends.
func (s *session) Do(ctx context.Context, r *verify.Request) (*verify.Answer, error) {
	s.busy.Lock() // the time for the answer begins when other requests have ended
	defer s.busy.Unlock()
	return s.do(ctx, r)
}

// do does the same as Do. The caller must hold busy.
func (s *session) do(ctx context.Context, r *verify.Request) (*verify.Answer, error) {
	within := answerTime
	for _, f := range r.Flows {
		within = max(within, answerTime+time.Duration(f.Count*f.Interval+f.Wait)*time.Millisecond)
	}
	if len(r.RDMA) > 0 {
		within = max(within, rdmaTime)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer of the prober within %s", within))
	defer cancel()
	defer context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })()
	a, err := s.lines.Do(r)
	if !errors.Is(err, verify.ErrEnded) {
		return a, err
	}
	s.close()
	return nil, s.err
}

// close ends the connection, and this ends the prober.
func (s *session) close() {
	s.cancel(errors.New("the session is over"))
	<-s.ended
}

// absent stands for the prober of a node that has no prober. Its error is the reason.
type absent struct{ error }

func (a absent) Do(context.Context, *verify.Request) (*verify.Answer, error) { return nil, a.error }
