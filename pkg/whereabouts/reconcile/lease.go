package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// leaseName differs from the name that earlier releases used. They had no Lease in
	// their manifests, and helm does not adopt an object that it did not make.
	leaseName = "rail-cni-reconciler"
	leaseTime = time.Minute
	// followTime is the shortest pause between two reads of the Lease while its holder
	// renews it. It is long because a DaemonSet has a follower on each node.
	followTime = 4 * time.Minute
)

// lease is the Lease of a cluster's reconcilers, as one of them sees it.
type lease struct {
	client   *kube.Client
	identity string

	// revision and renewed are those of the Lease when acquire last saw it with another
	// holder. since is when acquire first saw that revision, by the monotonic clock of this
	// host. Only this clock can show how long the holder has been silent, because the times
	// in the Lease are those of the holder's host.
	revision string
	renewed  time.Time
	since    time.Time
	// alive is set if the last read showed that the holder had renewed the Lease shortly
	// before.
	alive bool
}

type leaseSpec struct {
	Holder   string    `json:"holderIdentity"`
	Seconds  int       `json:"leaseDurationSeconds"`
	Acquired microTime `json:"acquireTime,omitzero"`
	Renewed  microTime `json:"renewTime,omitzero"`
}

// microTime has six decimals, which the API requires.
type microTime struct{ time.Time }

// MarshalJSON writes it in the form of metav1.MicroTime.
func (t microTime) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
}

func (l *lease) resource() kube.Resource {
	return kube.Resource{Group: "coordination.k8s.io", Version: "v1", Plural: "leases", Namespace: l.client.Namespace()}
}

type leaseObject struct {
	api.TypeMeta
	Metadata kube.Meta `json:"metadata"`
	Spec     leaseSpec `json:"spec"`
}

// acquire takes the Lease if it is free, or renews it if this process holds it. It reports
// whether this process holds the Lease now. If two processes find the Lease free, the
// server refuses the second one. The Lease of another holder is free if it has not changed
// for longer than its duration.
func (l *lease) acquire(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTime/2)
	defer cancel()
	l.alive = false
	now := microTime{time.Now()}
	wanted := leaseObject{
		TypeMeta: api.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		Metadata: kube.Meta{Name: leaseName, Namespace: l.client.Namespace()},
		Spec:     leaseSpec{Holder: l.identity, Seconds: int(leaseTime / time.Second), Acquired: now, Renewed: now},
	}
	data, err := l.client.Get(ctx, l.resource(), leaseName)
	if kube.IsNotFound(err) {
		_, err = l.client.Create(ctx, l.resource(), wanted)
		if kube.IsAlreadyExists(err) {
			return false, nil
		}
		if api.IsDenied(err) {
			err = failure.From(err, failure.NotAvailable, "there is no Lease %s in %s", leaseName, l.client.Namespace()).
				Cure("apply the Lease from the manifests (Argo CD excludes Leases: see resource.exclusions)")
		}
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	var is leaseObject
	if err := json.Unmarshal(data, &is); err != nil {
		return false, err
	}
	if is.Spec.Holder != "" && is.Spec.Holder != l.identity && !l.expired(is, now.Time) {
		return false, nil
	}
	_, err = l.client.MergePatch(ctx, l.resource(), leaseName, map[string]any{
		"metadata": map[string]any{"resourceVersion": is.Metadata.ResourceVersion}, "spec": wanted.Spec,
	})
	if kube.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}

// expired reports whether another holder's Lease has stayed unchanged for longer than its
// duration. It notes the Lease's revision for the next read. asked is when the request for
// the Lease was sent.
func (l *lease) expired(is leaseObject, asked time.Time) bool {
	if is.Metadata.ResourceVersion == l.revision {
		return asked.Sub(l.since) > time.Duration(is.Spec.Seconds)*time.Second
	}
	now := time.Now() // the answer may have taken long
	// If the holder has renewed the Lease until now, it has moved the renew time by as much
	// as this host's clock has moved. It does not matter which times the two clocks show.
	silent := now.Sub(l.since) - is.Spec.Renewed.Sub(l.renewed)
	l.alive = l.revision != "" && silent < leaseTime && silent > -leaseTime
	l.revision, l.renewed, l.since = is.Metadata.ResourceVersion, is.Spec.Renewed.Time, now
	return false
}

// pause returns how long a follower waits until it reads the Lease again.
func (l *lease) pause() time.Duration {
	if l.alive {
		return followTime + rand.N(followTime)
	}
	return leaseTime/2 + rand.N(leaseTime/2)
}

// errLeaseLost ends the work of a holder that could not renew its Lease.
var errLeaseLost = errors.New("another reconciler may have the Lease " + leaseName)

// keep runs work while it renews the Lease, and then releases the Lease.
func (l *lease) keep(ctx context.Context, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for wait.For(ctx, leaseTime/3) == nil {
			if held, err := l.acquire(ctx); !held {
				cancel(errors.Join(errLeaseLost, err))
			}
		}
	}()
	err := work(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	<-ended
	if errors.Is(err, errLeaseLost) {
		return err
	}
	after, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer done()
	const holder = "/spec/holderIdentity"
	_, releaseErr := l.client.Patch(after, l.resource(), leaseName, []kube.PatchOp{
		{Op: "test", Path: holder, Value: l.identity}, {Op: "remove", Path: holder},
	})
	if kube.IsRefused(releaseErr) || kube.IsNotFound(releaseErr) { // another has it by now
		releaseErr = nil
	}
	return errors.Join(err, releaseErr)
}
