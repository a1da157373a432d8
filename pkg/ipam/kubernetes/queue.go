package kubernetes

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
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// ask is one address wanted of, or given back to, a pool.
type ask struct {
	Owner ipam.Owner `json:"owner"`
	// Range is what an address is wanted of; nil gives back what Owner ends.
	Range     *ipam.RangeSpec `json:"range,omitempty"`
	Want      netip.Addr      `json:"want"`
	Exclusive bool            `json:"exclusive,omitempty"`
	// Note is what the asker knows of what it gives back.
	Note *note `json:"note,omitempty"`
}

// nothing says that the asker only wants the journal seen to.
func (a *ask) nothing() bool { return a.Range == nil && a.Owner.ContainerID == "" }

// answer ends an ask: an address, an error, or neither when something was
// given back.
type answer struct {
	Addr  netip.Addr `json:"address"`
	Code  uint       `json:"code,omitempty"`
	Error string     `json:"error,omitempty"`
	// Deferred says why what was given back is left to the journal.
	Deferred string `json:"deferred,omitempty"`
	// Silence says so when it is because the server does not answer.
	Silence string `json:"silence,omitempty"`
}

func (a answer) err() error {
	if a.Error == "" {
		return nil
	}
	return &cnierr.Error{Code: a.Code, What: a.Error}
}

// pending is an ask that whoever leads carries out.
type pending struct {
	*ask
	name string // file
	// answered is set when there is an answer, of which err is the error.
	answered bool
	answer   answer
	err      error

	// journalled is the file of the journal that the ask is from, and kubeconfig
	// that of the entry: nobody waits for its answer.
	journalled, kubeconfig string

	// What the leader has done for it so far.
	rng       *ipam.Range
	planned   bool       // the next patch is made with it
	committed bool       // the pool is as it should be
	addr      netip.Addr // in the pool, once committed
	key       string     // of addr
	drop      *held      // in the pool and reserved by another: to be taken out again
	freed     []held     // what is taken out for good
	foreign   int        // addresses that others had reserved
	refusal   error      // the answer, once the pool has nothing of it
	final     bool       // the refusal holds, whatever the pool says
}

// held is an entry of the pool.
type held struct {
	addr     netip.Addr
	key      string
	entry    Entry
	reserved bool   // there may be a reservation
	uid      string // of the reservation, "" when it must be looked up
}

const (
	askSuffix    = ".ask"
	answerSuffix = ".answer"
	queueLock    = "lock"
	// longestTurn bounds one patch: a handful of operations an ask, and the
	// server takes ten thousand.
	longestTurn = 512
	// againAfter is about how long a leader who got no answer from the server
	// lets others lead.
	againAfter = time.Second
	// rubbishAge is how old a temporary file is when its writer was killed.
	rubbishAge = time.Minute
)

// errAgain is wrapped when the leader could do nothing for itself now.
var errAgain = errors.New("to be tried again")

// leader carries asks out, in their order, of which own is this process's. An
// error is why own has no answer yet, though it has time left.
type leader func(ctx context.Context, own *pending, asks []*pending) error

// queue is where the processes of a node wait for one pool.
type queue struct{ dir *statefile.Dir }

// submit has a carried out: by lead in this process, together with what others
// have posted, or by another process that leads before this one.
func (q queue) submit(ctx context.Context, a *ask, lead leader) (answer, error) {
	data, err := json.Marshal(a)
	if err != nil {
		return answer{}, err
	}
	// In the order of arrival: names sort by time.
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
		ans, err := q.takeTurn(ctx, name, a, posted, lead)
		if !errors.Is(err, errAgain) {
			return ans, err
		}
		// The server does not answer. Others, who may only want to free, go on.
		select {
		case <-time.After(againAfter/2 + rand.N(againAfter)):
		case <-ctx.Done():
			return answer{}, cnierr.Wrap(err, cnierr.TryAgain, "try again", "")
		}
	}
}

// takeTurn waits for the lock, and then either finds its answer or leads.
func (q queue) takeTurn(ctx context.Context, name string, a *ask, posted *statefile.Lock, lead leader) (answer, error) {
	lock, err := q.dir.Lock(ctx, queueLock)
	if err != nil {
		return answer{}, err
	}
	defer lock.Unlock()
	if ans, ok := q.answerOf(name); ok {
		return ans, ans.err()
	}
	own := &pending{ask: a, name: name}
	others, err := q.waiting(name)
	if err != nil {
		return answer{}, err
	}
	asks := append(others, own)
	slices.SortFunc(asks, func(a, b *pending) int { return strings.Compare(a.name, b.name) })
	err = lead(ctx, own, asks)
	for _, p := range asks {
		if p != own && p.answered {
			q.reply(p)
		}
	}
	if !own.answered {
		return answer{}, fmt.Errorf("%w: %w", errAgain, err)
	}
	_ = posted.Withdraw() // before the next one leads, and carries it out again
	return own.answer, own.err
}

func (q queue) answerOf(name string) (answer, bool) {
	data, err := q.dir.Read(name + answerSuffix)
	if err != nil {
		return answer{}, false
	}
	var a answer
	return a, json.Unmarshal(data, &a) == nil
}

// waiting gives what others have posted and nobody has answered, the oldest
// first. What the dead have posted is removed.
func (q queue) waiting(own string) ([]*pending, error) {
	names, err := q.dir.List("")
	if err = errors.Join(err, q.dir.Sweep(rubbishAge)); err != nil {
		return nil, err
	}
	var all []*pending
	for _, file := range names {
		name, isAsk := strings.CutSuffix(file, askSuffix)
		if answered, ok := strings.CutSuffix(file, answerSuffix); ok && !slices.Contains(names, answered+askSuffix) {
			// Who asked has left without it.
			if err := q.dir.Remove(file); err != nil {
				return nil, err
			}
		}
		if !isAsk || name == own || len(all) == longestTurn {
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
		p := &pending{ask: new(ask), name: name}
		data, err := q.dir.Read(file)
		if err != nil || json.Unmarshal(data, p.ask) != nil {
			continue // its poster has just left, or leads itself
		}
		all = append(all, p)
	}
	return all, nil
}

// reply leaves p's answer. If it cannot be written the asker leads itself, and
// finds what was done for it.
func (q queue) reply(p *pending) {
	data, err := json.Marshal(p.answer)
	if err != nil {
		return
	}
	_ = q.dir.Write(p.name+answerSuffix, data)
}

func (p *pending) open() bool { return !p.answered }

// settle ends p.
func (p *pending) settle(addr netip.Addr, err error) {
	p.answered, p.err = true, err
	p.answer = answer{Addr: addr}
	if err != nil {
		p.answer = answer{Code: cnierr.Code(err), Error: err.Error()}
	}
}
