package credential

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// lab is a keeper of the plugin's kubeconfig, with a real API server.
type lab struct {
	t     *testing.T
	plane *controlplane.Plane
	c     *Keeper
	log   *strings.Builder
}

func newLab(t *testing.T, plane *controlplane.Plane, node string) *lab {
	t.Helper()
	l := &lab{t: t, plane: plane, log: &strings.Builder{}}
	if _, err := l.plane.ServiceAccount(t.Context(), "kube-system", "rail-cni-whereabouts"); err != nil {
		t.Fatal(err)
	}
	client, err := kube.Open(kube.Config{Kubeconfig: l.plane.AdminKubeconfig()})
	if err != nil {
		t.Fatal(err)
	}
	l.c = New(Options{
		Client: client, ConfDir: t.TempDir(), Node: node, Account: "rail-cni-whereabouts", Namespace: "kube-system", Lifetime: time.Hour,
		Put: install.Open(t.TempDir()).Put, Log: slog.New(slog.NewTextHandler(l.log, nil)),
	})
	return l
}

func (l *lab) createNode(name string) {
	l.t.Helper()
	code, answer, err := l.plane.Admin().Create(l.t.Context(), "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": name}})
	if err != nil || code != http.StatusCreated {
		l.t.Fatal(code, string(answer), err)
	}
}

// code returns the status of the server's answer to a request with the token.
func (l *lab) code(token string) int {
	l.t.Helper()
	client, err := l.plane.Client(controlplane.Credential{Token: token})
	if err != nil {
		l.t.Fatal(err)
	}
	code, _, err := client.Get(l.t.Context(), "/version")
	if err != nil {
		l.t.Fatal(err)
	}
	return code
}

// await waits until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("still waiting for %s after a minute", what)
		}
	}
}

func TestTokenOfThePlugin(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	t.Run("ends with its Node, and is renewed for the next one", func(t *testing.T) { testTokenEndsWithItsNode(t, plane) })
	t.Run("is not bound where there is no such Node", func(t *testing.T) { testTokenWithoutNode(t, plane) })
}

func testTokenEndsWithItsNode(t *testing.T, plane *controlplane.Plane) {
	t.Helper()
	l := newLab(t, plane, "node1")
	l.createNode("node1")
	if err := l.c.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := l.c.token
	if code := l.code(first); code != http.StatusOK {
		t.Errorf("the token: %d", code)
	}
	if err := l.c.sync(t.Context()); err != nil || l.c.token != first {
		t.Errorf("a second look: %v, another token: %v", err, l.c.token != first)
	}
	if code, answer, err := l.plane.Admin().Delete(t.Context(), "/api/v1/nodes/node1"); err != nil || code != http.StatusOK {
		t.Fatal(code, string(answer), err)
	}
	// The server caches its TokenReviews for 10 s.
	await(t, "the token's end with its Node", func() bool { return l.code(first) == http.StatusUnauthorized })
	l.createNode("node1") // the kubelet registers itself again
	if code := l.code(first); code != http.StatusUnauthorized {
		t.Errorf("the token of another Node of the same name: %d", code)
	}
	if err := l.c.sync(t.Context()); err == nil {
		t.Error("the agent did not notice")
	}
	if err := l.c.sync(t.Context()); err != nil || l.c.token == first {
		t.Errorf("a look after that: %v, the same token: %v", err, l.c.token == first)
	}
	if code := l.code(l.c.token); code != http.StatusOK {
		t.Errorf("the new token: %d", code)
	}
	if strings.Contains(l.log.String(), "is not bound to the Node") {
		t.Error(l.log)
	}
}

func testTokenWithoutNode(t *testing.T, plane *controlplane.Plane) {
	t.Helper()
	l := newLab(t, plane, "a-host-name")
	for range 2 {
		l.c.fresh = time.Time{}
		if err := l.c.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if code := l.code(l.c.token); code != http.StatusOK {
		t.Errorf("the token: %d", code)
	}
	if n := strings.Count(l.log.String(), "is not bound to the Node"); n != 1 {
		t.Errorf("it told %d times: %s", n, l.log)
	}
}

// TestTokensThatFailAgainAndAgainAreAskedForSeldom: a server may refuse every token, for example
// because of a wrong address or a proxy, or it may not answer. Such a server must not get a request
// each second from each node.
func TestTokensThatFailAgainAndAgainAreAskedForSeldom(t *testing.T) {
	for what, tc := range map[string]struct {
		err, last error
		failed    int
		from, to  time.Duration
	}{
		"the first refusal":                {errRejected, nil, 1, time.Second / 2, time.Second},
		"refused again":                    {errRejected, errRejected, 2, checkInterval / 2, checkInterval},
		"another error after a refusal":    {errNotYet, errRejected, 2, time.Second, 2 * time.Second},
		"another error, the fifth":         {errNotYet, errNotYet, 5, 8 * time.Second, 16 * time.Second},
		"another error, after a long time": {errNotYet, errNotYet, 1000, maxPause / 2, maxPause},
	} {
		pauses := map[time.Duration]bool{}
		for range 100 {
			p := (&Keeper{}).pause(tc.err, tc.last, tc.failed)
			if pauses[p] = true; p < tc.from || p > tc.to {
				t.Errorf("%s: a pause of %s, want %s to %s", what, p, tc.from, tc.to)
			}
		}
		if len(pauses) < 10 {
			t.Errorf("%s: all nodes pause for the same time", what)
		}
	}
}

// tokens returns the client of a server that accepts everything and issues tokens of
// this lifetime.
func tokens(t *testing.T, life time.Duration) *kube.Client {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status":{"token":"t","expirationTimestamp":%q}}`, time.Now().Add(life).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(path, kubeconfigText(server.URL, ca, "agent", "kube-system"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := kube.Open(kube.Config{Kubeconfig: path})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestReadyOnceTheFilesAreThereUntilTheTokenEnds: without a kubeconfig, a plugin cannot reach the
// server. With a kubeconfig, it can until the token expires.
func TestReadyOnceTheFilesAreThereUntilTheTokenEnds(t *testing.T) {
	full, away := errors.New("no space left"), errors.New("the server is away")
	broken, record := true, install.Open(t.TempDir())
	k := New(Options{
		Client: tokens(t, time.Hour), ConfDir: t.TempDir(), Node: "node1", Account: "a", Namespace: "n", Lifetime: time.Hour,
		Log: slog.New(slog.DiscardHandler), Put: func(ctx context.Context, f install.File) (install.Outcome, error) {
			if broken {
				return "", full
			}
			return record.Put(ctx, f)
		},
	})
	if err := k.Ready(); !errors.Is(err, errNotYet) {
		t.Errorf("before the first look: %v", err)
	}
	k.set(k.sync(t.Context()))
	if err := k.Ready(); !errors.Is(err, full) {
		t.Errorf("with a token that cannot be written: %v", err)
	}
	broken = false
	k.set(k.sync(t.Context()))
	if err := k.Ready(); err != nil {
		t.Errorf("with all files: %v", err)
	}
	k.set(away)
	if err := k.Ready(); err != nil {
		t.Errorf("with a token that lives: %v", err)
	}
	k.ends = time.Now()
	if err := k.Ready(); !errors.Is(err, away) {
		t.Errorf("with a token that has ended: %v", err)
	}
}

// TestTokenIsRenewedAtHalfItsLifetime: the server's clock may differ from this host's clock, and
// the granted lifetime may differ from the requested lifetime.
func TestTokenIsRenewedAtHalfItsLifetime(t *testing.T) {
	for name, c := range map[string]struct{ expires, life time.Duration }{
		"as was asked for":  {time.Hour, time.Hour},
		"a shorter life":    {20 * time.Minute, 20 * time.Minute},
		"ended already":     {-10 * time.Hour, time.Hour},
		"a far longer life": {10 * time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			client := tokens(t, c.expires)
			kept := New(Options{Client: client, Account: "a", Namespace: "n", Lifetime: time.Hour})
			before := time.Now()
			if err := kept.renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			asked := kept.fresh.Sub(before) // includes the time until the answer
			if off := asked - c.life/2; kept.token != "t" || off.Abs() > 4*time.Minute {
				t.Errorf("it is renewed after %s, want %s", asked, c.life/2)
			}
			if ends := kept.ends.Sub(before); (ends - c.life).Abs() > 4*time.Minute {
				t.Errorf("it ends after %s, want %s", ends, c.life)
			}
		})
	}
}
