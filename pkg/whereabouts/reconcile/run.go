package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	// afterError is the pause before a failed step is repeated.
	afterError = 10 * time.Second
	// gathering is the time during which deletions are collected before a scan.
	gathering = time.Second
)

// Run reconciles until ctx ends. If several reconcilers run in a cluster, only the one that
// holds the Lease works, because each full scan costs the server a list of pods. The others
// only wait, and replay the journal of their node. (The Lease only saves that cost: each
// change is safe without it.) If the leader dies, a follower takes the Lease within about
// ten minutes. If the leader ends properly, a follower takes the Lease when it next reads
// it.
//
// The leader scans everything at each Interval, and whenever its watch of pods broke. In
// between, it checks the pods that the watch reported as deleted, after the grace period.
// Pools are not watched, because each event would contain a whole pool. They are read when
// they are needed.
func (r *Reconciler) Run(ctx context.Context) error {
	l := &lease{client: r.Client, identity: r.Identity}
	var next time.Time // when to read the Lease
	for ctx.Err() == nil {
		if err := r.replay(ctx); err != nil {
			r.Log.Warn("journal replay has failed, retrying", "err", err)
		}
		if !time.Now().Before(next) {
			held, err := l.acquire(ctx)
			if held && err == nil {
				err = errNotScanned
			}
			r.note(err)
			if held {
				r.Log.Info("reconciling the cluster's addresses")
				err = l.keep(ctx, r.lead)
				r.surveyed(nil)
			}
			if err != nil && ctx.Err() == nil {
				r.Log.Warn("reconciliation has failed, retrying", "err", err)
			}
			next = time.Now().Add(l.pause())
		}
		_ = wait.For(ctx, min(time.Until(next), leaseTime/2+rand.N(leaseTime/2)))
	}
	return nil
}

// lead reconciles while this process holds the Lease.
func (r *Reconciler) lead(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	went, began := make(chan string), make(chan struct{})
	go r.watch(ctx, went, began)

	if r.NodeGrace > 0 {
		r.nodes = &nodes{grace: r.NodeGrace}
	}
	r.blocks = NewBlocks(max(r.NodeGrace, r.Grace))
	deleted := map[string]time.Time{}
	// full is the time of the next full scan; the first is due when the watch begins. some is
	// the time of the next scan of deleted or marked pods, or zero if there are none.
	full, some := time.Now().Add(afterError), time.Time{}
	replayed, missed := time.Now(), errNotScanned // missed is the reason why not everything was scanned
	for {
		next := full
		if !some.IsZero() && some.Before(next) {
			next = some
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ref := <-went:
			deleted[ref] = time.Now()
			if soon := time.Now().Add(r.Grace + gathering); some.IsZero() || soon.Before(some) {
				some = soon
			}
			continue
		case <-began:
			full = time.Now()
			continue
		case <-time.After(time.Until(next)):
		}

		all := !time.Now().Before(full)
		r.Log.Debug("checking addresses", "all", all, "pods", len(deleted))
		ripe := maps.Clone(deleted)
		if !all { // pods that were deleted too recently are for the next scan
			maps.DeleteFunc(ripe, func(_ string, t time.Time) bool { return time.Since(t) < r.Grace })
		}
		found, err := r.examine(ctx, all, ripe)
		r.Report(found)
		missed = r.noteScan(ctx, all, missed, err)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			r.Log.Warn("cannot check the addresses, retrying", "err", err)
			if all {
				full = time.Now().Add(afterError)
			}
		case all:
			full = time.Now().Add(r.Interval)
		}
		if err == nil {
			for ref := range ripe {
				delete(deleted, ref)
			}
		}
		some = r.someAt(len(deleted))
		if all && time.Since(replayed) > leaseTime {
			replayed = time.Now()
			if err := r.replay(ctx); err != nil {
				r.Log.Warn("journal replay has failed, retrying", "err", err)
			}
		}
	}
}

// noteScan notes err, the error of a scan, for [Reconciler.Ready]. all means that the scan
// was of everything, and missed is the error of the previous scan of everything. noteScan
// returns the new value of missed. If ctx has ended, it ignores err: the scan itself has
// not failed, and another reconciler may lead by now.
func (r *Reconciler) noteScan(ctx context.Context, all bool, missed, err error) error {
	if ctx.Err() != nil {
		return missed
	}
	if all {
		missed = err
	}
	r.note(cmp.Or(missed, err))
	return missed
}

// someAt returns the time of the next scan of deleted or marked pods, or zero if there are
// no such pods. Until then at least afterError passes, and after a failed scan at least the
// grace period.
func (r *Reconciler) someAt(deleted int) time.Time {
	again := time.Now().Add(max(r.Grace, afterError))
	switch {
	case deleted > 0 || len(r.marks) > 0 && r.next.Before(time.Now()):
		return again
	case len(r.marks) == 0:
		return time.Time{}
	}
	return later(r.next, time.Now().Add(afterError))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// examine examines all pods, or only those in deleted. Unreadable objects do not
// cause an early repetition.
func (r *Reconciler) examine(ctx context.Context, all bool, deleted map[string]time.Time) ([]*Finding, error) {
	if all {
		deleted = nil
	}
	found, err := r.scan(ctx, deleted)
	if odd := (oddError{}); errors.As(err, &odd) {
		r.Log.Warn("cannot read some objects; they are ignored", "err", err)
		err = nil
	}
	return found, err
}

// Report logs findings.
func (r *Reconciler) Report(found []*Finding) {
	for _, f := range found {
		level := slog.LevelInfo
		switch f.Outcome {
		case Waiting, Changed:
			level = slog.LevelDebug
		case Kept, Failed:
			level = slog.LevelWarn
		}
		r.Log.Log(context.Background(), level, string(f.Kind)+": "+f.Outcome, "pool", f.Pool, "address", f.Address, "reservation", f.Reservation,
			"pod", f.PodRef, "ifname", f.IfName, "containerID", f.ContainerID, "why", f.Why, "err", f.Error)
	}
}

// watch sends the deleted pods to went. Whenever it starts anew, and so may have missed
// deleted pods, it signals that on began.
func (r *Reconciler) watch(ctx context.Context, went chan<- string, began chan<- struct{}) {
	for from := ""; ctx.Err() == nil; {
		var err error
		if from == "" {
			if from, err = newestPod(ctx, r.Client); err == nil {
				send(ctx, began, struct{}{})
			}
		} else {
			err = r.Client.Watch(ctx, podsOf(""), kube.ListOptions{MetadataOnly: true, ResourceVersion: from}, func(e kube.Event) error {
				var o struct {
					Metadata kube.Meta `json:"metadata"`
				}
				if err := json.Unmarshal(e.Object, &o); err != nil {
					return err
				}
				from = o.Metadata.ResourceVersion
				if e.Type == "DELETED" {
					send(ctx, went, o.Metadata.Namespace+"/"+o.Metadata.Name)
				}
				return nil
			})
		}
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("cannot watch pods, retrying", "err", err)
			from = ""
			_ = wait.For(ctx, time.Second)
		}
	}
}

func send[T any](ctx context.Context, to chan<- T, what T) {
	select {
	case to <- what:
	case <-ctx.Done():
	}
}

// newestPod returns a resource version from which a watch of pods may begin. It is the
// version of an empty list from the server's cache.
func newestPod(ctx context.Context, client *kube.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, afterError)
	defer cancel()
	return client.List(ctx, podsOf(""), kube.ListOptions{
		MetadataOnly: true, ResourceVersion: "0", FieldSelector: "spec.nodeName=none,metadata.name=none",
	}, func([]byte) error { return nil })
}
