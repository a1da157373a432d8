package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// ask requests one address of a pool, or releases one.
type ask struct {
	Owner ipam.Owner `json:"owner"`
	// Range is the range of the requested address. If it is nil, the ask releases the
	// addresses that Owner ends.
	Range     *ipam.RangeSpec `json:"range,omitempty"`
	Want      netip.Addr      `json:"want"`
	Exclusive bool            `json:"exclusive,omitempty"`
	Rotate    bool            `json:"rotate,omitempty"`
	// Note is the asker's note of the address that it releases.
	Note *note `json:"note,omitempty"`
	// Kubeconfig and FlatFile are the asker's access to the server, see
	// [Endpoint].
	Kubeconfig string `json:"kubeconfig,omitempty"`
	FlatFile   string `json:"flatFile,omitempty"`
	// Born is a time at which the sandbox existed already, by this node's clock. It is zero
	// for a release.
	Born time.Time `json:"born,omitzero"`

	// isCanceled reports whether the address is no longer needed. nil means that it is
	// always needed. Only the asker's process can find that out, so the function is not
	// posted.
	isCanceled func() bool
}

// frees reports whether the asker releases an address.
func (a *ask) frees() bool { return a.Range == nil && !a.nothing() }

// canceled reports whether the address that a asks for is no longer needed.
func (a *ask) canceled() bool { return a.isCanceled != nil && a.isCanceled() }

// nothing reports whether the ask is only for a replay of the journal.
func (a *ask) nothing() bool { return a.Range == nil && a.Owner.ContainerID == "" }

// answer is the answer to an ask: an address, an error, or neither if an address was
// released.
type answer struct {
	Addr  netip.Addr `json:"address"`
	Code  uint       `json:"code,omitempty"`
	Error string     `json:"error,omitempty"`
	// Deferred is the reason why a release was written to the journal.
	Deferred string `json:"deferred,omitempty"`
	// Silence is "", except if the reason for Deferred is that the server does not answer.
	// Then it is that reason.
	Silence string `json:"silence,omitempty"`
}

func (a answer) err() error {
	if a.Error == "" {
		return nil
	}
	return failure.New(cnierr.KindOf(a.Code), "%s", a.Error)
}

const (
	askSuffix    = ".ask"
	answerSuffix = ".answer"
	queueLock    = "lock"
	// maxTurn bounds the number of asks in one patch. Each ask needs a handful of
	// operations, and the server accepts ten thousand operations in one patch.
	maxTurn = 512
	// againAfter is about how long a writer leaves the turn to others after the server did
	// not answer it.
	againAfter = time.Second
	// lockPatience is how long an ask that frees an address waits for its turn.
	lockPatience = 5 * time.Second
	// sandboxCheck is the time between checks whether a waiting ask still needs
	// its address.
	sandboxCheck = 200 * time.Millisecond
)

// errAgain is wrapped by the error of a writer that could not carry out its own ask yet.
var errAgain = errors.New("to be tried again")

// writer carries out jobs in their order. self is the job of this process. The writer
// returns an error if self has no answer yet but has time left.
type writer func(ctx context.Context, self *job, jobs []*job) error

// queue is the queue of a node's processes for one pool.
type queue struct{ dir *statefile.Dir }

// submit has the ask a carried out and returns the answer. Either this process carries it
// out with write, together with the asks of others, or another process does that in an
// earlier turn.
func (q queue) submit(ctx context.Context, a *ask, write writer) (answer, error) {
	data, err := json.Marshal(a)
	if err != nil {
		return answer{}, err
	}
	// Names sort by time, so asks are carried out in the order of arrival.
	name := fmt.Sprintf("%016x%08x", time.Now().UnixNano(), rand.Uint32())
	posted, err := q.dir.Post(name+askSuffix, data)
	if err != nil {
		return answer{}, err
	}
	defer func() {
		_ = posted.UnlockAndRemove()
		_ = q.dir.Remove(name + answerSuffix)
	}()
	for {
		ans, err := q.takeTurn(ctx, name, a, posted, write)
		if !errors.Is(err, errAgain) {
			return ans, err
		}
		// The server does not answer. Let other processes continue: they may only want to
		// free addresses.
		if wait.For(ctx, againAfter/2+rand.N(againAfter)) != nil {
			return answer{}, failure.From(err, failure.TryAgain, "").Cure("try again")
		}
	}
}

// takeTurn waits for the lock. Then it either finds the answer to a, or becomes the writer.
func (q queue) takeTurn(ctx context.Context, name string, a *ask, posted *statefile.Lock, write writer) (answer, error) {
	waiting, stop := a.patience(ctx)
	lock, err := q.dir.Lock(waiting, queueLock)
	stop()
	if err != nil {
		return answer{}, err
	}
	defer lock.Unlock()
	if ans, ok := q.answerOf(name); ok {
		return ans, ans.err()
	}
	self := &job{ask: a, name: name}
	jobs := []*job{self}
	join := func() ([]*job, error) {
		more, err := q.waiting(jobs)
		jobs = append(jobs, more...)
		return more, err
	}
	if _, err := join(); err != nil {
		return answer{}, err
	}
	slices.SortFunc(jobs, func(a, b *job) int { return strings.Compare(a.name, b.name) })
	self.join = join
	err = write(ctx, self, slices.Clone(jobs))
	for _, j := range jobs {
		if j != self && !j.open() {
			q.reply(j)
		}
	}
	if self.open() {
		return answer{}, fmt.Errorf("%w: %w", errAgain, err)
	}
	_ = posted.Withdraw() // so that the next writer does not carry it out again
	return self.answer, self.err
}

// patience returns a context that ends when the asker stops waiting for its turn.
func (a *ask) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	switch {
	case a.frees():
		return context.WithTimeout(ctx, lockPatience)
	case a.isCanceled == nil:
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		tick := time.NewTicker(sandboxCheck)
		defer tick.Stop()
		for !a.canceled() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

func (q queue) answerOf(name string) (answer, bool) {
	data, err := q.dir.Read(name + answerSuffix)
	if err != nil {
		return answer{}, false
	}
	var a answer
	return a, json.Unmarshal(data, &a) == nil
}

// waiting returns the unanswered asks of other processes, the oldest first. It leaves out
// the asks in known. It removes the asks of dead processes.
func (q queue) waiting(known []*job) ([]*job, error) {
	names, err := q.dir.List("")
	if err != nil {
		return nil, err
	}
	var all []*job
	for _, file := range names {
		name, isAsk := strings.CutSuffix(file, askSuffix)
		if answered, ok := strings.CutSuffix(file, answerSuffix); ok && !slices.Contains(names, answered+askSuffix) {
			// The asker has ended without the answer.
			if err := q.dir.Remove(file); err != nil {
				return nil, err
			}
		}
		isKnown := slices.ContainsFunc(known, func(j *job) bool { return j.name == name })
		if !isAsk || isKnown || len(known)+len(all) > maxTurn {
			continue
		}
		held, err := q.dir.Held(file)
		if err != nil {
			return nil, err
		}
		if !held {
			if err := errors.Join(q.dir.Remove(file), q.dir.Remove(name+answerSuffix)); err != nil {
				return nil, err
			}
			continue
		}
		if q.dir.Exists(name + answerSuffix) {
			continue
		}
		j := &job{ask: new(ask), name: name}
		data, err := q.dir.Read(file)
		if err != nil || json.Unmarshal(data, j.ask) != nil {
			continue // its poster has just ended, or is the writer
		}
		j.isCanceled = func() bool {
			held, err := q.dir.Held(file)
			return err == nil && !held
		}
		all = append(all, j)
	}
	return all, nil
}

// reply writes j's answer. If it cannot be written, the asker becomes the
// writer and finds the result in the pool.
func (q queue) reply(j *job) {
	data, err := json.Marshal(j.answer)
	if err != nil {
		return
	}
	_ = q.dir.Write(j.name+answerSuffix, data)
}
