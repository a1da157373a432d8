package publish

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// Times of the annotator.
const (
	coalesce   = time.Second      // pause after the last change: a pod with eight rails has eight ADDs
	patchFor   = 10 * time.Second // limit for one request, with its repetitions
	firstRetry = 5 * time.Second  // pause after the first failure; each further pause is twice as long
	lastRetry  = 5 * time.Minute
	// The time between two requests for a pod doubles from coalesce to maxGap, so that a pod that
	// changes its addresses all the time does not cause a storm of requests. If calm passes without
	// a change, the time is coalesce again.
	maxGap = time.Minute
	calm   = 5 * time.Minute
)

// annotator writes [railinfo.RailsAnnotation]. It does not delay anything else, because it has a separate
// goroutine and a separate lock.
type annotator struct {
	*Keeper

	mu     sync.Mutex
	pods   map[string]*annotation // by the names of their directories
	failed uint64
	wake   *component.Trigger
}

// annotation is the annotation that a pod should have.
type annotation struct {
	pod   railinfo.PodRef
	value string
	next  time.Time // when the annotation is to be written, zero if it has been written
	pause time.Duration

	wrote time.Time     // when the last request for the pod was made
	gap   time.Duration // least time until the next request
}

func newAnnotator(k *Keeper) *annotator {
	return &annotator{Keeper: k, pods: map[string]*annotation{}, wake: component.NewTrigger()}
}

// want sets the annotation that a pod should have. It does nothing if the pod has no name in a
// cluster.
func (a *annotator) want(name string, r *railinfo.Rails) {
	if a.Client == nil || r.Pod.Namespace == "" || r.Pod.Name == "" {
		return
	}
	value := string(r.Compact())
	a.mu.Lock()
	defer a.mu.Unlock()
	if have := a.pods[name]; have != nil && have.value == value {
		return
	}
	n := &annotation{pod: r.Pod, value: value, next: time.Now().Add(coalesce)}
	if have := a.pods[name]; have != nil {
		n.pause, n.wrote, n.gap = have.pause, have.wrote, have.gap
		if free := n.wrote.Add(max(n.gap, n.pause)); free.After(n.next) {
			n.next = free
		}
	}
	a.pods[name] = n
	a.wake.Fire()
}

// keep forgets all pods except those with these names.
func (a *annotator) keep(names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.pods {
		if !slices.Contains(names, name) {
			delete(a.pods, name)
		}
	}
}

func (a *annotator) failures() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// run writes the annotations until ctx ends.
func (a *annotator) run(ctx context.Context) {
	loop := component.Loop{Reporter: a.reporter, Trigger: a.wake, Settle: rest, Do: func(ctx context.Context) time.Time {
		for ctx.Err() == nil {
			due, next := a.due(time.Now())
			if due == nil {
				return time.Now().Add(next)
			}
			a.write(ctx, due)
		}
		return time.Now()
	}}
	loop.Run(ctx)
}

// due returns an annotation that must be written now, or the time until the next one must be
// written.
func (a *annotator) due(now time.Time) (*annotation, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := lastRetry
	for _, n := range a.pods {
		switch {
		case n.next.IsZero():
		case !n.next.After(now):
			return n, 0
		default:
			next = min(next, n.next.Sub(now))
		}
	}
	return nil, next
}

// begin records that a request for the pod begins.
func (a *annotator) begin(n *annotation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if now.Sub(n.wrote) > calm {
		n.gap = 0
	}
	n.wrote, n.gap = now, min(max(2*n.gap, coalesce), maxGap)
}

// write writes one annotation. If it panics, the annotator tries again later.
func (a *annotator) write(ctx context.Context, n *annotation) {
	if a.reporter.Contain(func() error { a.patch(ctx, n); return nil }) != nil {
		a.done(n, lastRetry)
	}
}

// patch is write without the recovery from a panic. Because of the UID the server refuses the patch
// for another pod with the same name.
func (a *annotator) patch(ctx context.Context, n *annotation) {
	a.begin(n)
	ctx, cancel := context.WithTimeout(ctx, patchFor)
	defer cancel()
	meta := map[string]any{"annotations": map[string]string{railinfo.RailsAnnotation: n.value}}
	if n.pod.UID != "" {
		meta["uid"] = n.pod.UID
	}
	_, err := a.Client.MergePatch(ctx, kube.Resource{Version: "v1", Plural: "pods", Namespace: n.pod.Namespace}, n.pod.Name, map[string]any{"metadata": meta})
	switch {
	case err == nil, kube.IsNotFound(err), kube.IsConflict(err): // written, or the pod is gone
		a.report("annotations", nil)
		a.done(n, 0)
	default:
		a.done(n, min(max(2*n.pause, firstRetry), lastRetry))
		a.mu.Lock()
		a.failed++
		a.mu.Unlock()
		a.report("annotations", err)
	}
}

// done sets the time of the next try. A pause of 0 means that there is none.
func (a *annotator) done(n *annotation, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n.next, n.pause = time.Time{}, pause
	if pause > 0 {
		n.next = time.Now().Add(pause)
	}
}
