package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

const credentialV1 = "client.authentication.k8s.io/v1"

// guarded is an API server whose lists are empty. It answers only requests with a certain token.
type guarded struct {
	*httptest.Server
	token    string
	requests atomic.Int64
}

func newGuarded(t *testing.T, token string) *guarded {
	t.Helper()
	g := &guarded{token: token}
	g.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if got := r.Header.Get("Authorization"); got != "Bearer "+g.token {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"kind":"Status","status":"Failure","reason":"Unauthorized","message":"Unauthorized","code":401}`)
			return
		}
		_, _ = io.WriteString(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	t.Cleanup(g.Close)
	return g
}

// ca returns the server's certificate in PEM.
func (g *guarded) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})
}

// kubeconfig returns a kubeconfig with this server, the user u, and a context with both.
func (g *guarded) kubeconfig(user string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority-data":%q}}],"users":[%s]}`,
		g.URL, base64.StdEncoding.EncodeToString(g.ca()), user)
}

// login writes a program that provides credentials. The n-th call of the program prints the file
// answer.n in its directory, or the file answer if there is no answer.n.
func login(t *testing.T, tokens ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "login"), `#!/bin/sh
cd "${0%/*}" && echo "$(echo "$KUBERNETES_EXEC_INFO" | tr -d '\n') $*" >> calls
n=$(wc -l < calls)
if [ -e "answer.$n" ]; then cat "answer.$n"; else cat answer; fi
`)
	for n, token := range tokens {
		text, err := json.Marshal(map[string]any{"apiVersion": credentialV1, "kind": "ExecCredential", "status": map[string]string{"token": token}})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, fmt.Sprint("answer.", n+1)), string(text))
	}
	return dir
}

// calls returns the input of each call of the program.
func calls(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// userOf returns the user u, whose credentials the command provides.
func userOf(command, more string) string {
	return fmt.Sprintf(`{"name":"u","user":{"exec":{"apiVersion":%q,"command":%q,"interactiveMode":"Never"%s}}}`, credentialV1, command, more)
}

// TestProgramForCredentialsIsRun: the kubeconfig of a person often names a program for credentials,
// for example kubelogin, aws or gcloud.
func TestProgramForCredentialsIsRun(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	g := newGuarded(t, "good")
	for _, c := range []struct {
		name   string
		tokens []string
	}{
		{"it is accepted", []string{"good"}},
		{"another one after a refusal", []string{"old", "good"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := login(t, c.tokens...)
			path := filepath.Join(dir, "kubeconfig")
			write(t, path, g.kubeconfig(userOf("./login", `,"args":["get-token"],"provideClusterInfo":true`)))
			out, errOut, code := plainRun("ipam", "show", "--kubeconfig", path)
			if code != 0 {
				t.Fatalf("exit code %d: %s%s", code, out, errOut)
			}
			told := calls(t, dir)
			if len(told) != len(c.tokens) {
				t.Errorf("%d calls, want %d", len(told), len(c.tokens))
			}
			contains(t, "what the program is told", told[0], credentialV1, g.URL, "get-token")
		})
	}
}

func TestProgramWithoutCredentialsIsNamed(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	g := newGuarded(t, "good")
	fails, refused := login(t), login(t, "a", "b", "c", "d", "e")
	for name, c := range map[string]struct {
		dir, user string
		wants     []string
	}{
		"it fails":            {fails, userOf("./login", ""), []string{filepath.Join(fails, "login"), "exit code 1", "make sure that the program works"}},
		"it is not there":     {t.TempDir(), userOf("no-such-login", `,"installHint":"ask X"`), []string{"no-such-login not found", "ask X"}},
		"it is refused":       {refused, userOf("./login", ""), []string{"401", "the server refused the credentials from the program " + filepath.Join(refused, "login")}},
		"an unknown version":  {t.TempDir(), `{"name":"u","user":{"exec":{"apiVersion":"v0","command":"x","interactiveMode":"Never"}}}`, []string{"v0", "correct the file"}},
		"no interactive mode": {t.TempDir(), `{"name":"u","user":{"exec":{"apiVersion":"` + credentialV1 + `","command":"x"}}}`, []string{"interactiveMode", "correct the file"}},
		"an auth provider":    {t.TempDir(), `{"name":"u","user":{"auth-provider":{"name":"gcp"}}}`, []string{"gcp", "correct the file"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(c.dir, "kubeconfig")
			write(t, path, g.kubeconfig(c.user))
			out, errOut, code := plainRun("ipam", "show", "--kubeconfig", path)
			if code != 1 {
				t.Errorf("exit code %d: %s", code, out)
			}
			contains(t, "stderr", errOut, append(c.wants, "kubeconfig "+path)...)
		})
	}
}

// TestUserOfAnotherFile checks that the files of $KUBECONFIG are merged. A relative path in a file
// begins at the directory of that file.
func TestUserOfAnotherFile(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	g := newGuarded(t, "good")
	dir, other := t.TempDir(), login(t, "good")
	one, two := filepath.Join(dir, "one"), filepath.Join(other, "two")
	write(t, one, g.kubeconfig(""))
	write(t, two, `{"apiVersion":"v1","kind":"Config","current-context":"other","users":[`+userOf("./login", "")+`]}`)
	t.Setenv("KUBECONFIG", one+string(os.PathListSeparator)+two)
	if out, errOut, code := plainRun("ipam", "show"); code != 0 || len(calls(t, other)) != 1 {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
}

func TestServiceAccountOfItsPod(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	g := newGuarded(t, "pod's")
	host, port, err := net.SplitHostPort(g.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	dir := t.TempDir()
	for name, text := range map[string]string{"token": "pod's", "ca.crt": string(g.ca()), "namespace": "rails"} {
		write(t, filepath.Join(dir, name), text)
	}
	f := &cluster.Flags{WithoutPlugins: true, Access: kube.Config{ServiceAccount: dir}}
	cli.AddClusterFlags(&cobra.Command{}, f)
	client, err := f.Open("test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "pods"}, kube.ListOptions{}, func([]byte) error { return nil }); err != nil {
		t.Error(err)
	}
	if client.Namespace() != "rails" || g.requests.Load() != 1 {
		t.Errorf("namespace %q, %d requests", client.Namespace(), g.requests.Load())
	}
}
