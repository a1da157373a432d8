package api

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// ErrContended is wrapped by the error of a writer that lost every race until
// its deadline.
var ErrContended = errors.New("other writers keep changing the pool")

// IsTransient reports whether err is about this process' deadline, its connection or other
// writers, and not about its request. Then the same request may succeed in another process.
func IsTransient(err error) bool {
	return kube.IsUnavailable(err) || errors.Is(err, ErrContended) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// IsAccessError reports whether the server denies access, does not know the kind of object,
// or does not prove its identity. The request can succeed only after an operator has
// repaired the token, the role, the CRDs, the certificates, the clock or the connection.
func IsAccessError(err error) bool {
	var e *kube.Error
	return IsDenied(err) || kube.IsMisdirected(err) || errors.As(err, &e) && e.Status == http.StatusNotFound && !kube.IsNotFound(err)
}

// IsDenied reports whether the server denies access.
func IsDenied(err error) bool {
	var e *kube.Error
	return errors.As(err, &e) && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden)
}

// IsLostRace reports whether the server refused a patch because the pool has changed since
// it was read. The caller must read the pool again.
func IsLostRace(err error) bool {
	return kube.IsRefused(err) || kube.IsConflict(err) || kube.IsNotFound(err) || kube.IsAlreadyExists(err)
}

const shortestPause, maxPause = 10 * time.Millisecond, 500 * time.Millisecond

// PauseAfterRace waits for a random time after a lost race, so that the writers do not
// collide again. lost is the number of lost races: the more races were lost, the longer the
// time may be. err is the error of the last race. If ctx ends first, PauseAfterRace returns
// an error that wraps [ErrContended] and err.
func PauseAfterRace(ctx context.Context, lost int, err error) error {
	limit := min(shortestPause<<min(lost, 10), maxPause)
	if wait.For(ctx, rand.N(limit)) == nil {
		return nil
	}
	return failure.From(errors.Join(ErrContended, err), failure.TryAgain, "gave up after %d tries", lost).
		Cure("try again, or let each node assign addresses of its own part of the range (block_size or node_slice_size)")
}
