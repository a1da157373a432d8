package replay

import (
	"context"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
)

const (
	// replayEvery is the time between two checks of the journals.
	replayEvery = 30 * time.Second
	// replayTime bounds one replay, because the client retries an unreachable server for a
	// long time.
	replayTime = 2 * time.Minute
)

// keeper replays the journals while they have entries.
type keeper struct {
	Journals
	reporter *component.Reporter

	mu      sync.Mutex
	waiting int // addresses to be freed
	err     error
}

// Component returns a component of the agent that replays the journals.
func (j Journals) Component(notify func(component.Notice)) component.Component {
	k := &keeper{Journals: j, reporter: component.NewReporter("journal", j.Log, notify)}
	loop := component.Loop{Reporter: k.reporter, Do: k.sync}
	return component.Component{Name: "journal", Reporter: k.reporter, Run: loop.Run, Collect: k.collect, Status: k.status}
}

// sync replays the journals if they have entries. It reports when addresses begin to wait,
// and when none waits any more. It returns the time of the next check.
func (k *keeper) sync(ctx context.Context) (next time.Time) {
	waiting, err := k.Waiting()
	if err == nil && waiting > 0 {
		bounded, cancel := context.WithTimeout(ctx, replayTime)
		err = k.Replay(bounded)
		cancel()
		if left, again := k.Waiting(); again == nil {
			waiting = left
		}
	}
	next = time.Now().Add(replayEvery)
	if ctx.Err() != nil {
		return next
	}
	k.mu.Lock()
	waited := k.waiting > 0
	k.waiting, k.err = waiting, err
	k.mu.Unlock()
	const key = "journal"
	switch {
	case err != nil:
		k.reporter.OnceErr(key, err, component.Notice{
			Reason: "AddressesNotFreed", Summary: "cannot free addresses of pods that ended", Message: "addresses of pods that ended wait to be freed: ", Warning: true,
		}, "waiting", waiting)
	case waiting == 0 && (k.reporter.Over(key) || waited):
		k.reporter.Report(component.Notice{Reason: "AddressesFreed", Summary: "addresses of pods that ended were freed", Message: "no address waits to be freed any more"})
	}
	return next
}

func (k *keeper) get() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting, k.err
}

func (k *keeper) status() map[string]any {
	waiting, err := k.get()
	s := map[string]any{"journal": waiting}
	if err != nil {
		s["journalError"] = err.Error()
	}
	return s
}

func (k *keeper) collect(out component.Metrics) {
	waiting, _ := k.get()
	out.Gauge("rail_cni_journal_addresses", "Addresses that wait to be freed, because the API server was away at DEL.", float64(waiting))
}
