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
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/notify"
)

// installed puts a kubeconfig and a flat file in the places where whereabouts' installer puts them.
func (l *lab) installed(credential controlplane.Credential, edit func(text string) string) (kubeconfig string) {
	l.t.Helper()
	from, err := l.plane.Kubeconfig(credential, controlplane.Form{})
	if err != nil {
		l.t.Fatal(err)
	}
	text, err := os.ReadFile(from)
	if err != nil {
		l.t.Fatal(err)
	}
	kubeconfig = l.c.path(kubeconfigName)
	if err := os.MkdirAll(filepath.Dir(kubeconfig), 0o755); err != nil {
		l.t.Fatal(err)
	}
	l.write(kubeconfig, edit(string(text)))
	l.write(l.c.path(flatFileName), fmt.Sprintf(`{"datastore": "kubernetes", "kubernetes": {"kubeconfig": %q}}`, kubeconfig))
	return kubeconfig
}

func (l *lab) write(path, text string) {
	l.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) read(path string) string {
	l.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

// settle lets the keeper check again and again until its result is certain. It returns the last
// error.
func (l *lab) settle() error {
	l.t.Helper()
	l.c.surely = 10 * time.Millisecond
	for range 50 {
		err := l.c.sync(l.t.Context())
		if !errors.Is(err, errDoubt) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	l.t.Fatal("it is never sure")
	return nil
}

func unchanged(text string) string { return text }

// dead is a token that no server knows.
var dead = controlplane.Credential{Token: "eyJhbGciOiJSUzI1NiJ9.e30.AAAA"}

func TestKubeconfigOfAnotherInstaller(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	lives, err := plane.ServiceAccount(t.Context(), "kube-system", "whereabouts")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("stays while the server accepts it, and is replaced when it does not", func(t *testing.T) {
		l := newLab(t, plane, "a-host-name")
		var told []component.Notice
		l.c.Notify = func(n component.Notice) { told = append(told, n) }
		path := l.installed(lives, unchanged)
		theirs := l.read(path)
		if err := l.settle(); err != nil || l.read(path) != theirs {
			t.Fatalf("a kubeconfig that works: %v, it is there: %v", err, l.read(path) == theirs)
		}
		if use := l.c.Use(); use.Path != path || use.Owned || !use.Accepted || use.Refused != nil || use.Unasked != nil {
			t.Errorf("%+v", use)
		}
		// When the installer's pod is gone, the token is no longer valid, but the file does not
		// change.
		l.installed(dead, unchanged)
		if err := l.c.sync(t.Context()); !errors.Is(err, errDoubt) {
			t.Errorf("the first refusal: %v", err)
		}
		if l.read(path) == theirs || strings.Contains(l.read(path), "rail-agent") {
			t.Error("it was replaced after one refusal")
		}
		if err := l.settle(); err != nil {
			t.Fatal(err)
		}
		if text := l.read(path); !strings.Contains(text, l.c.token) || l.code(l.c.token) != http.StatusOK {
			t.Errorf("the kubeconfig is\n%s", text)
		}
		if use := l.c.Use(); !use.Owned || !use.Accepted {
			t.Errorf("%+v", use)
		}
		if len(told) != 1 || told[0].Reason != "KubeconfigReplaced" || !strings.Contains(told[0].Message, path) || !strings.Contains(l.log.String(), "KubeconfigReplaced") {
			t.Errorf("it told %+v", told)
		}
		// Another keeper, as after a restart, must know that the kubeconfig is rail-agent's, and
		// must renew its token.
		before := l.read(path)
		again := New(l.c.Options)
		if err := again.sync(t.Context()); err != nil || l.read(path) == before {
			t.Errorf("after a restart: %v, renewed: %v", err, l.read(path) != before)
		}
	})
	for what, edit := range map[string]func(string) string{
		`in the namespace "elsewhere"`: func(s string) string {
			return strings.Replace(s, "    user: whereabouts\n", "    user: whereabouts\n    namespace: elsewhere\n", 1)
		},
		"names a proxy": func(s string) string {
			return strings.Replace(s, "    server:", "    tls-server-name: localhost\n    server:", 1)
		},
		"its server is https://localhost": func(s string) string { return strings.Replace(s, "127.0.0.1", "localhost", 1) },
	} {
		t.Run("that leads elsewhere stays: "+what, func(t *testing.T) {
			l := newLab(t, plane, "a-host-name")
			path := l.installed(dead, edit)
			theirs := l.read(path)
			err := l.settle()
			var refused *refusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), path) {
				t.Errorf("it says %v", err)
			}
			if l.read(path) != theirs {
				t.Error("it was replaced")
			}
			if ready := l.c.Ready(); ready == nil || l.c.Use().Refused == nil {
				t.Errorf("ready: %v, %+v", ready, l.c.Use())
			}
			if err := l.c.sync(t.Context()); !errors.As(err, &refused) { // without another question
				t.Errorf("the next look: %v", err)
			}
			l.installed(lives, unchanged)
			if err := l.settle(); err != nil || l.c.Use().Refused != nil {
				t.Errorf("a renewed token: %v, %+v", err, l.c.Use())
			}
		})
	}
	t.Run("that the flat file names elsewhere is the one that counts", func(t *testing.T) {
		l := newLab(t, plane, "a-host-name")
		l.installed(lives, unchanged)
		named := filepath.Join(t.TempDir(), "named")
		l.write(named, strings.Replace(l.read(l.c.path(kubeconfigName)), lives.Token, dead.Token, 1))
		l.write(l.c.path(flatFileName), fmt.Sprintf(`{"kubernetes": {"kubeconfig": %q}}`, named))
		if err := l.settle(); err == nil || !strings.Contains(err.Error(), named) || l.c.Use().Path != named {
			t.Errorf("it says %v", err)
		}
	})
}

// TestSilenceAndProxiesAreNoRefusal: if a server does not answer, a proxy answers 401, or a server
// refuses everybody, this says nothing about the token.
func TestSilenceAndProxiesAreNoRefusal(t *testing.T) {
	refuses := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`))
	}
	for what, c := range map[string]struct {
		answer   func(w http.ResponseWriter)
		everyone bool // gets this answer, and the agent, too
		taken    bool
	}{
		"a refusal":                       {refuses, false, true},
		"a server that refuses everybody": {refuses, true, false},
		"a proxy":                         {func(w http.ResponseWriter) { http.Error(w, "log in first", http.StatusUnauthorized) }, false, false},
		"no storage":                      {func(w http.ResponseWriter) { http.Error(w, "etcd is away", http.StatusInternalServerError) }, false, false},
	} {
		t.Run(what, func(t *testing.T) {
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.everyone && strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") || r.Header.Get("Authorization") == "Bearer theirs" {
					c.answer(w)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"status":{"token":"t","expirationTimestamp":%q}}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
			}))
			defer server.Close()
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			l := &lab{t: t, log: &strings.Builder{}}
			own := filepath.Join(t.TempDir(), "kubeconfig")
			l.write(own, string(kubeconfigText(server.URL, ca, "agent", "kube-system")))
			client, err := kube.Open(kube.Config{Kubeconfig: own})
			if err != nil {
				t.Fatal(err)
			}
			l.c = New(Options{
				Client: client, ConfDir: t.TempDir(), Node: "node1", Account: "a", Namespace: "kube-system", Lifetime: time.Hour,
				Put: install.Open(t.TempDir()).Put, Log: slog.New(slog.NewTextHandler(l.log, nil)),
			})
			l.c.surely = time.Millisecond
			path := l.c.path(kubeconfigName)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			theirs := string(kubeconfigText(server.URL, ca, "theirs", "kube-system"))
			l.write(path, theirs)
			for range 5 {
				_ = l.c.sync(t.Context()) // what it says is tested above
				time.Sleep(2 * time.Millisecond)
			}
			if taken := l.read(path) != theirs; taken != c.taken {
				t.Errorf("it was replaced: %v", taken)
			}
		})
	}
}

// TestAKubeconfigThatDoesNotChangeIsAskedForSeldom: a thousand nodes must not all ask at the same
// time, and must not ask often.
func TestAKubeconfigThatDoesNotChangeIsAskedForSeldom(t *testing.T) {
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer theirs" {
			asked++
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status":{"token":"t","expirationTimestamp":%q}}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	l := &lab{t: t, log: &strings.Builder{}}
	l.c = New(Options{
		Client: tokens(t, time.Hour), ConfDir: t.TempDir(), Node: "node1", Account: "a", Namespace: "kube-system", Lifetime: time.Hour,
		Put: install.Open(t.TempDir()).Put, Log: slog.New(slog.NewTextHandler(l.log, nil)),
	})
	path := l.c.path(kubeconfigName)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	l.write(path, string(kubeconfigText(server.URL, ca, "theirs", "kube-system")))
	next := map[time.Duration]bool{}
	for i := range 20 {
		if err := l.c.sync(t.Context()); err != nil || asked != 1 {
			t.Fatalf("look %d: %v, asked %d times", i, err, asked)
		}
	}
	for i := range 10 {
		l.write(path, string(kubeconfigText(server.URL, ca, "theirs", fmt.Sprint("kube-", i))))
		began := time.Now()
		if err := l.c.sync(t.Context()); err != nil || asked != i+2 {
			t.Fatalf("change %d: %v, asked %d times", i, err, asked)
		}
		pause := l.c.used.next.Sub(began)
		if next[pause.Round(time.Second/10)] = true; pause < asks/2 || pause > asks+time.Minute {
			t.Errorf("it asks again after %v", pause)
		}
	}
	if len(next) < 3 {
		t.Errorf("all nodes ask at the same times: %v", next)
	}
}

// TestKeeperSeesAnotherKubeconfigAtOnce: if the plugins' file changes, the keeper must see it at
// once and not a minute later.
func TestKeeperSeesAnotherKubeconfigAtOnce(t *testing.T) {
	l := &lab{t: t, log: &strings.Builder{}}
	dirs := notify.NewDirs(slog.New(slog.DiscardHandler))
	t.Cleanup(dirs.Close)
	l.c = New(Options{
		Client: tokens(t, time.Hour), ConfDir: t.TempDir(), Node: "node1", Account: "a", Namespace: "kube-system", Lifetime: time.Hour,
		Put: install.Open(t.TempDir()).Put, Dirs: dirs, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.c.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	path := l.c.path(kubeconfigName)
	await(t, "the first kubeconfig", func() bool { _, err := os.Stat(path); return err == nil && l.c.Use().Accepted })
	began := time.Now()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await(t, "another one", func() bool { _, err := os.Stat(path); return err == nil })
	if took := time.Since(began); took > checkInterval/2 {
		t.Errorf("it took %v", took)
	}
}
