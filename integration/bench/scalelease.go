package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
)

// Other users of the API server wait while nodes change pools. The one that must not wait
// long is kube-controller-manager: it ends if it cannot renew its lease for ten seconds
// (--leader-elect-renew-deadline).
const (
	leaseUser  = "system:kube-controller-manager"
	leasePath  = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	leaseName  = "kube-controller-manager"
	leaseEvery = 250 * time.Millisecond // between renewals; kube-controller-manager's is two seconds
)

// lease renews kube-controller-manager's lease as its user, so that the requests are in the
// API priority level of leaders. A renewal is a read and an update; the real leader mostly
// needs only the update.
type lease struct {
	client *controlplane.Client
}

func newLease(ctx context.Context, plane *controlplane.Plane) (*lease, error) {
	object := map[string]any{"metadata": map[string]any{"name": leaseName}, "spec": map[string]any{"holderIdentity": "bench"}}
	if code, answer, err := plane.Admin().Create(ctx, leasePath, object); err != nil || code != 201 {
		return nil, fmt.Errorf("making the lease of %s: %d %s (%w)", leaseUser, code, answer, err)
	}
	c, err := plane.CertificateFor(leaseUser)
	if err != nil {
		return nil, err
	}
	client, err := plane.Client(c)
	return &lease{client}, err
}

// renew reads and updates the lease once.
func (l *lease) renew(ctx context.Context) error {
	path := leasePath + "/" + leaseName
	code, answer, err := l.client.Get(ctx, path)
	if err == nil && code == 200 {
		var object map[string]any
		if err := json.Unmarshal(answer, &object); err != nil {
			return err
		}
		object["spec"] = map[string]any{"holderIdentity": "bench", "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")}
		code, answer, err = l.client.Update(ctx, path, object)
	}
	if err != nil || code != 200 {
		return fmt.Errorf("renewing the lease of %s: %d %s (%w)", leaseUser, code, answer, err)
	}
	return nil
}

// during calls do, and renews the lease until do returns. It returns the duration of each
// renewal in seconds, and how many failed.
func (l *lease) during(ctx context.Context, do func()) (took []float64, failed int) {
	ended := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() {
		ticker := time.NewTicker(leaseEvery)
		defer ticker.Stop()
		for {
			began := time.Now()
			if err := l.renew(ctx); err != nil {
				fmt.Fprintln(os.Stderr, " ", err)
				failed++
			}
			took = append(took, time.Since(began).Seconds())
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
		}
	})
	do()
	close(ended)
	renewing.Wait()
	return took, failed
}
