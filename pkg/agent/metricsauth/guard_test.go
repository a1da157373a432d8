package metricsauth

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

// reviewer is an API server that accepts tokens that begin with "right". It answers questions about
// "slow" tokens only when the test allows it.
type reviewer struct {
	reviews, now, most atomic.Int64
	release            chan struct{}
}

func (s *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Spec struct{ Token string } }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	status := map[string]any{"allowed": true}
	if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
		s.reviews.Add(1)
		now := s.now.Add(1)
		defer s.now.Add(-1)
		for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
		}
		if strings.HasPrefix(asked.Spec.Token, "slow") {
			select {
			case <-s.release:
			case <-r.Context().Done():
			}
		}
		status = map[string]any{"authenticated": strings.HasPrefix(asked.Spec.Token, "right")}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status})
}

// guarded returns a reviewer, and a function that requests the metrics from a guard
// that uses it.
func guarded(t *testing.T) (s *reviewer, get func(from, token string) int) {
	t.Helper()
	s = &reviewer{release: make(chan struct{})}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"token":"agent"}}],"current-context":"c"}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := kube.Open(kube.Config{Kubeconfig: config, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	g := NewGuard(client, slog.New(slog.NewTextHandler(io.Discard, nil)))
	g.time, g.refuses = time.Hour, time.Hour // too long to expire in a test
	h := g.Before(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return s, func(from, token string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		r.RemoteAddr = from + ":1234"
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
}

// await waits until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("still waiting for %s after a minute", what)
		}
	}
}

// TestValidTokenIsAcceptedDuringFloodOfFalseTokens: one sender of false tokens must not use up the
// reviews that other senders need, even if its own reviews are slow.
func TestValidTokenIsAcceptedDuringFloodOfFalseTokens(t *testing.T) {
	s, get := guarded(t)
	var all sync.WaitGroup
	var refused atomic.Int64
	for i := range 50 {
		all.Go(func() {
			if get("10.0.0.9", "slow"+strings.Repeat("x", i)) != http.StatusUnauthorized {
				refused.Add(1)
			}
		})
	}
	await(t, "the reviews", func() bool { return s.now.Load() == reviewsOfOne && refused.Load() > 0 })
	for _, from := range []string{"10.0.0.10", "[fd00::1]"} {
		if code := get(from, "right"+from); code != http.StatusOK {
			t.Errorf("a right token from %s: %d", from, code)
		}
	}
	close(s.release)
	all.Wait()
	if code := get("10.0.0.9", "right"); code != http.StatusOK {
		t.Errorf("a right token from the same address, later: %d", code)
	}
}

// TestConcurrentReviewsAreBounded: a sender with many addresses must not load the server. Further
// requests wait.
func TestConcurrentReviewsAreBounded(t *testing.T) {
	s, get := guarded(t)
	var all sync.WaitGroup
	for i := range 2 * maxReviews {
		all.Go(func() { get("10.0.1."+fmt.Sprint(i), "slow"+strings.Repeat("x", i)) })
	}
	await(t, "the reviews", func() bool { return s.now.Load() == maxReviews })
	answer := make(chan int, 1)
	go func() { answer <- get("10.0.0.10", "right") }()
	close(s.release)
	if code := <-answer; code != http.StatusOK {
		t.Errorf("a right token: %d", code)
	}
	all.Wait()
	if most := s.most.Load(); most > maxReviews {
		t.Errorf("%d reviews at once, want at most %d", most, maxReviews)
	}
}

func TestTokenIsNotReviewedAgainAtOnce(t *testing.T) {
	for token, want := range map[string]int{"false": http.StatusUnauthorized, "right": http.StatusOK} {
		s, get := guarded(t)
		for range 5 {
			if code := get("10.0.0.9", token); code != want {
				t.Errorf("%s: %d", token, code)
			}
		}
		if n := s.reviews.Load(); n != 1 {
			t.Errorf("%s: %d reviews", token, n)
		}
	}
}
