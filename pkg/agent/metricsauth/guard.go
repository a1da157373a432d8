package metricsauth

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

const (
	guardTime    = 10 * time.Second // time limit for one token, including the wait, the TokenReview and the SubjectAccessReview
	guardMemory  = 2 * time.Minute  // how long an accepted token is not reviewed again; the kubelet uses the same time
	falseMemory  = 10 * time.Second // how long a refused token is not reviewed again; short, because it may become valid
	maxTokens    = 100              // the maximum number of remembered accepted tokens, and of remembered refused tokens
	maxReviews   = 4                // the maximum number of reviews at the same time, so that false tokens do not load the API server
	reviewsOfOne = 2                // requests of one sender that wait or are in review, so that it does not block others; 2, because two scrapers may share an address
	maxSenders   = 100              // the maximum number of senders whose requests wait or are in review
)

// Guard accepts a request if the cluster knows its bearer token and allows the token's account to
// get the path, for example /metrics.
type Guard struct {
	client  *kube.Client
	log     *slog.Logger
	reviews chan struct{}
	time    time.Duration // guardTime
	refuses time.Duration // falseMemory

	mu      sync.Mutex
	known   verdicts             // 200
	refused verdicts             // 401 and 403
	senders map[netip.Prefix]int // the number of requests that wait or are in review, by sender
}

// NewGuard returns a guard that asks the cluster of client.
func NewGuard(client *kube.Client, log *slog.Logger) *Guard {
	return &Guard{
		client: client, log: log, reviews: make(chan struct{}, maxReviews), time: guardTime, refuses: falseMemory,
		known: verdicts{}, refused: verdicts{}, senders: map[netip.Prefix]int{},
	}
}

// Before returns a handler that calls next for the requests that the guard accepts.
func (g *Guard) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code := g.check(r); code != http.StatusOK {
			http.Error(w, http.StatusText(code), code)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check returns the HTTP status for a request. It is StatusOK if the guard accepts the request.
func (g *Guard) check(r *http.Request) int {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return http.StatusUnauthorized
	}
	sum := sha256.Sum256([]byte(token))
	if code := g.remembers(sum); code != 0 {
		return code
	}
	from := senderOf(r)
	if !g.enter(from) {
		return http.StatusTooManyRequests
	}
	defer g.leave(from)
	ctx, cancel := context.WithTimeout(r.Context(), g.time)
	defer cancel()
	select {
	case g.reviews <- struct{}{}: // waiting requests get their turn in the order of their arrival
		defer func() { <-g.reviews }()
	case <-ctx.Done():
		return http.StatusServiceUnavailable
	}
	code, err := g.review(ctx, token, r.URL.Path)
	if err != nil {
		if r.Context().Err() == nil { // do not log that the sender has hung up, because it can do so as often as it likes
			g.log.Warn("cannot review the token of a metrics scrape", "err", err)
		}
		return http.StatusServiceUnavailable
	}
	g.remember(sum, code)
	return code
}

// review asks the cluster about a token. It returns the HTTP status for the request.
func (g *Guard) review(ctx context.Context, token, path string) (int, error) {
	user, known, err := g.client.WhoIs(ctx, token)
	if err != nil || !known {
		return http.StatusUnauthorized, err
	}
	allowed, err := g.client.MayGet(ctx, user, path)
	if err != nil || !allowed {
		return http.StatusForbidden, err
	}
	return http.StatusOK, nil
}

// senderOf returns the sender of a request. This is its IPv4 address. For IPv6 it is the /64
// network of the address, because one host can use all addresses of such a network.
func senderOf(r *http.Request) netip.Prefix {
	const network = 64
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	ip := remote.Addr().Unmap().WithZone("")
	sender, _ := ip.Prefix(min(ip.BitLen(), network))
	return sender
}

// enter reports whether a request of the sender may wait for a review. If so, the
// caller must call leave afterwards.
func (g *Guard) enter(from netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.senders[from]
	if n >= reviewsOfOne || n == 0 && len(g.senders) >= maxSenders {
		return false
	}
	g.senders[from]++
	return true
}

func (g *Guard) leave(from netip.Prefix) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.senders[from]--; g.senders[from] == 0 {
		delete(g.senders, from)
	}
}

// remembers returns the status of a token that was reviewed recently. It returns 0 if the token was
// not.
func (g *Guard) remembers(sum [sha256.Size]byte) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if code := g.known.status(sum); code != 0 {
		return code
	}
	return g.refused.status(sum)
}

func (g *Guard) remember(sum [sha256.Size]byte, code int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if code == http.StatusOK {
		g.known.put(sum, code, guardMemory)
	} else {
		g.refused.put(sum, code, g.refuses)
	}
}

// verdicts has the status of each token, by the token's digest. Refused tokens have a separate map,
// so that they do not displace accepted tokens.
type verdicts map[[sha256.Size]byte]verdict

type verdict struct {
	code  int
	until time.Time
}

// status returns the status of a token. It returns 0 if there is no status, or if it has expired.
func (v verdicts) status(sum [sha256.Size]byte) int {
	if is := v[sum]; time.Now().Before(is.until) {
		return is.code
	}
	return 0
}

func (v verdicts) put(sum [sha256.Size]byte, code int, life time.Duration) {
	if len(v) >= maxTokens {
		clear(v)
	}
	v[sum] = verdict{code, time.Now().Add(life)}
}
