package kube_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

// login is a program that provides credentials: its n-th call prints the file
// answer.n beside it, or else the file answer.
type login struct {
	dir, kubeconfig string
}

func newLogin(t *testing.T, server, cluster string) login {
	t.Helper()
	path := kubeconfig(t, server, cluster, "exec:\n  apiVersion: client.authentication.k8s.io/v1\n  command: ./login\n  interactiveMode: Never")
	dir := filepath.Dir(path)
	file(t, filepath.Join(dir, "login"), `#!/bin/sh
cd "${0%/*}" && echo call >> calls
n=$(wc -l < calls)
if [ -e "answer.$n" ]; then cat "answer.$n"; else cat answer; fi
`)
	return login{dir, path}
}

// answers writes an answer with this status for the n-th call or, with 0, for
// all.
func (l login) answers(t *testing.T, n int, status map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
	if err != nil {
		t.Fatal(err)
	}
	name := "answer"
	if n > 0 {
		name = fmt.Sprint("answer.", n)
	}
	file(t, filepath.Join(l.dir, name), string(text))
}

func (l login) calls(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(data), "\n")
}

func TestAProgramRunsWhenCredentialsAreNeeded(t *testing.T) {
	a := newAuthority(t)
	var refused atomic.Pointer[string]
	server := a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who := refused.Load(); who != nil && r.Header.Get("Authorization") == *who {
			refuse(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
			return
		}
		whoami(w, r)
	}))
	get := func(t *testing.T, c *kube.Client, want string) {
		t.Helper()
		got, err := c.Get(within(t, 10*time.Second), pools, "x")
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	t.Run("once while they last", func(t *testing.T) {
		l := newLogin(t, server.URL, ca(a))
		l.answers(t, 0, map[string]any{"token": "first", "expirationTimestamp": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
		for range 2 {
			client := open(t, kube.Config{Kubeconfig: l.kubeconfig})
			get(t, client, "Bearer first")
			get(t, client, "Bearer first")
		}
		if n := l.calls(t); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
	t.Run("again when they have expired", func(t *testing.T) {
		l := newLogin(t, server.URL, ca(a))
		l.answers(t, 0, map[string]any{"token": "later"})
		l.answers(t, 1, map[string]any{"token": "first", "expirationTimestamp": time.Now().Add(-time.Second).UTC().Format(time.RFC3339)})
		client := open(t, kube.Config{Kubeconfig: l.kubeconfig})
		if _, err := client.Get(within(t, 10*time.Second), pools, "x"); err != nil {
			t.Error(err)
		}
		get(t, client, "Bearer later")
	})
	t.Run("once if their end is a time that was not set", func(t *testing.T) { // Go's zero time, as programs write it
		l := newLogin(t, server.URL, ca(a))
		l.answers(t, 0, map[string]any{"token": "first", "expirationTimestamp": time.Time{}.Format(time.RFC3339)})
		client := open(t, kube.Config{Kubeconfig: l.kubeconfig})
		get(t, client, "Bearer first")
		get(t, client, "Bearer first")
		if n := l.calls(t); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
	t.Run("once if it writes YAML", func(t *testing.T) {
		l := newLogin(t, server.URL, ca(a))
		file(t, filepath.Join(l.dir, "answer"), "apiVersion: client.authentication.k8s.io/v1\nkind: ExecCredential\nstatus:\n  token: first\n"+
			"  expirationTimestamp: "+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+"\n")
		client := open(t, kube.Config{Kubeconfig: l.kubeconfig})
		get(t, client, "Bearer first")
		get(t, client, "Bearer first")
		if n := l.calls(t); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
	t.Run("again when the server refuses them", func(t *testing.T) {
		l := newLogin(t, server.URL, ca(a))
		l.answers(t, 0, map[string]any{"token": "accepted"})
		l.answers(t, 1, map[string]any{"token": "refused"})
		who := "Bearer refused"
		refused.Store(&who)
		get(t, open(t, kube.Config{Kubeconfig: l.kubeconfig}), "Bearer accepted")
		if n := l.calls(t); n != 2 {
			t.Errorf("%d calls", n)
		}
	})
	t.Run("for certificates", func(t *testing.T) {
		l := newLogin(t, server.URL, ca(a))
		for n, name := range []string{"one", "two"} {
			cert, key := a.pair(name)
			status := map[string]any{"clientCertificateData": string(cert), "clientKeyData": string(key)}
			if n == 0 { // long enough for a handshake, which needs them as well
				status["expirationTimestamp"] = time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339Nano)
			}
			l.answers(t, (n+1)%2, status)
		}
		client := open(t, kube.Config{Kubeconfig: l.kubeconfig})
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			got, err := client.Get(within(t, 10*time.Second), pools, "x")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(got), "certificate of two") {
				break // on a new connection
			}
			if time.Now().After(deadline) {
				t.Fatalf("still %s", got)
			}
		}
	})
}

func TestAProgramWithoutCredentials(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(http.HandlerFunc(whoami))
	const start = `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"`
	for name, c := range map[string]struct{ answer, want string }{
		"nothing":                {"", "JSON"},
		"no JSON":                {"token", "invalid character"},
		"another kind":           {`{"apiVersion":"client.authentication.k8s.io/v1","kind":"Status"}`, `"Status"`},
		"another version":        {`{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":{"token":"t"}}`, "v1beta1"},
		"no status":              {start + `}`, "no status"},
		"an empty status":        {start + `,"status":{}}`, "neither a token nor a certificate"},
		"a certificate alone":    {start + `,"status":{"clientCertificateData":"x"}}`, "only one of certificate and key"},
		"a key that is no key":   {start + `,"status":{"clientCertificateData":"x","clientKeyData":"y"}}`, "PEM"},
		"a time that is no time": {start + `,"status":{"token":"t","expirationTimestamp":"soon"}}`, "soon"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLogin(t, server.URL, ca(a))
			file(t, filepath.Join(l.dir, "answer"), c.answer)
			_, err := open(t, kube.Config{Kubeconfig: l.kubeconfig, RetryFor: time.Millisecond}).Get(within(t, 10*time.Second), pools, "x")
			wants(t, err, "/login", c.want, "make that work here")
		})
	}
	t.Run("it fails", func(t *testing.T) {
		l := newLogin(t, server.URL, ca(a)) // without an answer
		_, err := open(t, kube.Config{Kubeconfig: l.kubeconfig, RetryFor: time.Millisecond}).Get(within(t, 10*time.Second), pools, "x")
		wants(t, err, "/login", "exit code 1")
	})
	t.Run("it is not there, and how to get it", func(t *testing.T) {
		path := kubeconfig(t, server.URL, ca(a), "exec:\n  apiVersion: client.authentication.k8s.io/v1\n  command: no-such-login\n  installHint: ask X\n  interactiveMode: Never")
		_, err := open(t, kube.Config{Kubeconfig: path, RetryFor: time.Millisecond}).Get(within(t, 10*time.Second), pools, "x")
		wants(t, err, "no-such-login not found", "ask X")
	})
}
