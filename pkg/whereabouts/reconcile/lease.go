package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// leaseName differs from that of releases without a Lease in their
	// manifests: helm does not adopt an object that it did not make.
	leaseName = "rail-cni-reconciler"
	leaseTime = time.Minute
)

// lease is the Lease of a cluster's reconcilers.
type lease struct {
	client   *kube.Client
	identity string
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

func (l lease) resource() kube.Resource {
	return kube.Resource{Group: "coordination.k8s.io", Version: "v1", Plural: "leases", Namespace: l.client.Namespace()}
}

type leaseObject struct {
	api.TypeMeta
	Metadata kube.Meta `json:"metadata"`
	Spec     leaseSpec `json:"spec"`
}

// acquire takes the Lease if it is free. If two find it free the server refuses
// the second.
func (l lease) acquire(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTime/2)
	defer cancel()
	now := microTime{time.Now()}
	mine := leaseObject{
		TypeMeta: api.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		Metadata: kube.Meta{Name: leaseName, Namespace: l.client.Namespace()},
		Spec:     leaseSpec{Holder: l.identity, Seconds: int(leaseTime / time.Second), Acquired: now, Renewed: now},
	}
	data, err := l.client.Get(ctx, l.resource(), leaseName)
	if kube.IsNotFound(err) {
		_, err = l.client.Create(ctx, l.resource(), mine)
		if kube.IsAlreadyExists(err) {
			return false, nil
		}
		if api.IsDenied(err) {
			err = failure.WithCure(failure.Wrap(err, failure.NotAvailable, "there is no Lease %s in %s", leaseName, l.client.Namespace()),
				"apply it as the manifests have it (Argo CD leaves Leases out: resource.exclusions)")
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
	free := is.Spec.Holder == "" || is.Spec.Holder == l.identity ||
		now.Sub(is.Spec.Renewed.Time) > time.Duration(is.Spec.Seconds)*time.Second
	if !free {
		return false, nil
	}
	_, err = l.client.MergePatch(ctx, l.resource(), leaseName, map[string]any{
		"metadata": map[string]any{"resourceVersion": is.Metadata.ResourceVersion}, "spec": mine.Spec,
	})
	if kube.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}

// errLeaseLost ends the work of a holder that could not renew its Lease.
var errLeaseLost = errors.New("another reconciler may have the Lease " + leaseName)

// keep runs work while it renews the Lease, and then releases the Lease.
func (l lease) keep(ctx context.Context, work func(context.Context) error) error {
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
