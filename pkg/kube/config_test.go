package kube_test

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

var quiet = log.New(io.Discard, "", 0)

// whoami answers each request with its user and protocol.
func whoami(w http.ResponseWriter, r *http.Request) {
	who := r.Header.Get("Authorization")
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who = "certificate of " + r.TLS.PeerCertificates[0].Subject.CommonName
	}
	answer(w, http.StatusOK, fmt.Sprintf("%s %s %s gzip=%v", r.Proto, r.UserAgent(), who, r.Header.Get("Accept-Encoding") != ""))
}

func TestKubeconfigForms(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(http.HandlerFunc(whoami))
	cert, key := a.pair("someone")
	inline := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	var proxied atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		proxied.Add(1)
		w.WriteHeader(http.StatusTeapot) // to CONNECT
	}))
	defer proxy.Close()

	for _, c := range []struct {
		name, cluster, user string
		files               map[string]string // beside the kubeconfig
		want, fails         string
	}{
		{name: "CA and token inline", cluster: ca(a), user: "token: t1", want: "Bearer t1"},
		{name: "relative paths of CA and token", cluster: "certificate-authority: ca.crt", user: "tokenFile: token", files: map[string]string{"ca.crt": string(a.pem), "token": "t2\n"}, want: "Bearer t2"},
		{name: "a token file goes before a token", cluster: ca(a), user: "token: old\ntokenFile: token", files: map[string]string{"token": "t3"}, want: "Bearer t3"},
		{name: "no verification", cluster: "insecure-skip-tls-verify: true", user: "token: t4", want: "Bearer t4"},
		{name: "certificate inline", cluster: ca(a), user: "client-certificate-data: " + inline(cert) + "\nclient-key-data: " + inline(key), want: "certificate of someone"},
		{name: "certificate in files", cluster: ca(a), user: "client-certificate: me.crt\nclient-key: me.key", files: map[string]string{"me.crt": string(cert), "me.key": string(key)}, want: "certificate of someone"},
		{name: "user and password", cluster: ca(a), user: "username: u\npassword: p", want: "Basic dTpw"},
		{name: "no credentials", cluster: ca(a), user: "{}", want: " gzip"},
		{name: "another name of the server", cluster: ca(a) + "\ntls-server-name: api.test", user: "token: t6", want: "Bearer t6"},
		{name: "not the server's name", cluster: ca(a) + "\ntls-server-name: other.test", user: "token: t7", fails: "other.test"},
		{name: "proxy", cluster: ca(a) + "\nproxy-url: " + proxy.URL, user: "token: t8", fails: "teapot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := kubeconfig(t, server.URL, c.cluster, c.user)
			for name, content := range c.files {
				file(t, filepath.Join(filepath.Dir(path), name), content)
			}
			client := open(t, kube.Config{Kubeconfig: path, UserAgent: "tester"})
			if client.Namespace() != "kube-system" {
				t.Errorf("namespace %q", client.Namespace())
			}
			if client.Server() != server.URL {
				t.Errorf("server %q, not %q", client.Server(), server.URL)
			}
			got, err := client.Get(within(t, 2*time.Second), pools, "x")
			if c.fails != "" {
				wants(t, err, c.fails)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := string(got); !strings.HasPrefix(s, "HTTP/2.0 tester ") || !strings.Contains(s, c.want) || !strings.HasSuffix(s, "gzip=false") {
				t.Errorf("the server saw %q, not %q", s, c.want)
			}
		})
	}
	if proxied.Load() == 0 {
		t.Error("the proxy of the kubeconfig was not asked")
	}
}

func TestNamespaceOfTheContext(t *testing.T) {
	path := kubeconfig(t, "https://127.0.0.1:1", "{}", "{}")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file(t, path, strings.Replace(strings.Replace(string(content), "    {}\n", "", 1), "    user:", "    namespace: rails\n    user:", 1))
	if got := open(t, kube.Config{Kubeconfig: path}).Namespace(); got != "rails" {
		t.Errorf("namespace %q", got)
	}
}

func TestKubeconfigThatCannotBeUsed(t *testing.T) {
	good := `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
		"clusters":[{"name":"k","cluster":{"server":"https://127.0.0.1:1"}}],
		"users":[{"name":"u","user":{"token":"t"}}]}`
	open(t, kube.Config{Kubeconfig: file(t, filepath.Join(t.TempDir(), "good"), good)})
	for _, c := range []struct{ name, old, new, want string }{
		{"not YAML", good, "\tnothing: [", ""},
		{"another kind", `"Config"`, `"Pod"`, ""},
		{"empty", good, "", "no current-context"},
		{"no current context", `"current-context":"c",`, ``, "no current-context"},
		{"unknown context", `"current-context":"c"`, `"current-context":"d"`, `"d"`},
		{"unknown cluster", `"cluster":"k"`, `"cluster":"l"`, `"l"`},
		{"unknown user", `"user":"u"`, `"user":"v"`, `"v"`},
		{"no server", `"server":"https://127.0.0.1:1"`, ``, "no server"},
		{"bad server", `https://127.0.0.1:1`, `https://127.0.0.1:x`, "127.0.0.1:x"},
		{"bad CA", `"server":`, `"certificate-authority-data":"eA==","server":`, ""},
		{"missing CA", `"server":`, `"certificate-authority":"ca.crt","server":`, "ca.crt"},
		{"missing token", `"token":"t"`, `"tokenFile":"secret"`, "secret"},
		{"certificate without key", `"token":"t"`, `"client-certificate-data":"eA=="`, "client-key"},
		{"bad proxy", `"server":`, `"proxy-url":"gopher://x","server":`, "proxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := file(t, filepath.Join(t.TempDir(), "kubeconfig"), strings.Replace(good, c.old, c.new, 1))
			_, err := kube.Open(kube.Config{Kubeconfig: path})
			wants(t, err, "kubeconfig "+path, c.want)
			if failure.KindOf(err) != failure.InvalidConfig {
				t.Errorf("code %d of %v", cnierr.Code(err), err)
			}
		})
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "missing"), t.TempDir()} {
		_, err := kube.Open(kube.Config{Kubeconfig: path})
		wants(t, err, "kubeconfig "+path)
		if failure.KindOf(err) != failure.InvalidConfig {
			t.Errorf("code %d of %v", cnierr.Code(err), err)
		}
	}
}

// Every author of a network can name a kubeconfig, and a plugin runs as root.
func TestProgramOfAKubeconfigIsNotRun(t *testing.T) {
	a := newAuthority(t)
	var asked atomic.Int64
	server := a.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	const program = "apiVersion: client.authentication.k8s.io/v1\n  command: ./login\n  interactiveMode: Never"
	for name, c := range map[string]struct{ url, user, key string }{
		"exec":                 {server.URL, "exec:\n  " + program, "exec"},
		"exec beside a token":  {server.URL, "token: t\nexec:\n  " + program, "exec"},
		"exec without TLS":     {"http://127.0.0.1:1", "exec:\n  " + program, "exec"},
		"exec with nothing":    {server.URL, "exec: {}", "exec"},
		"an auth provider":     {server.URL, "auth-provider: {name: gcp, config: {cmd-path: ./login}}", "auth-provider"},
		"an auth provider too": {server.URL, "auth-provider: {name: gcp}\nexec:\n  " + program, "exec"},
	} {
		t.Run(name, func(t *testing.T) {
			path := kubeconfig(t, c.url, ca(a), c.user)
			mark := filepath.Join(filepath.Dir(path), "ran")
			file(t, filepath.Join(filepath.Dir(path), "login"), "#!/bin/sh\ntouch "+mark+"\n")
			_, err := kube.Open(kube.Config{Kubeconfig: path, Vet: func([]string) error { return nil }})
			wants(t, err, "kubeconfig "+path+`: user "whereabouts": "`+c.key+`" names a program`, "use a token, tokenFile or client certificate", "rail-agent run --cni-conf")
			if failure.KindOf(err) != failure.InvalidConfig {
				t.Errorf("code %d of %v", cnierr.Code(err), err)
			}
			if _, err := os.Lstat(mark); err == nil {
				t.Error("the program was run")
			}
		})
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the server got %d requests", n)
	}
}

// A program of another user does no harm if the context of that user is not the current
// one.
func TestProgramOfAnotherUser(t *testing.T) {
	path := kubeconfig(t, "https://127.0.0.1:1", "disable-compression: true", "token: t")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file(t, path, strings.Replace(string(content), "users:\n", "users:\n- name: person\n  user: {exec: {command: aws, apiVersion: v1}}\n", 1))
	open(t, kube.Config{Kubeconfig: path})
}

// A caller that opens somebody else's kubeconfig decides which files may be read. It gets
// their absolute paths before any of the files is read.
func TestWhatAKubeconfigLeadsToIsVetted(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		cluster, user string
		files         []string
	}{
		{"disable-compression: true", "token: t", nil},
		{"disable-compression: true", "tokenFile: /root/token", []string{"/root/token"}},
		{"certificate-authority: ca.crt", "client-certificate: ../me.crt\nclient-key: /me.key", []string{"/DIR/../me.crt", "/me.key", "/DIR/ca.crt"}},
	} {
		path := kubeconfig(t, "https://127.0.0.1:1", c.cluster, c.user)
		var want []string
		for _, f := range c.files {
			want = append(want, filepath.Clean(strings.ReplaceAll(f, "/DIR", filepath.Dir(path))))
		}
		asked := 0
		_, err := kube.Open(kube.Config{Kubeconfig: path, Vet: func(files []string) error {
			asked++
			if !slices.Equal(files, want) {
				t.Errorf("asked for %q, want %q", files, want)
			}
			return refused
		}})
		if !errors.Is(err, refused) || asked != 1 {
			t.Errorf("%v, asked %d times", err, asked)
		}
	}
}

func TestServiceAccountOfAPod(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(http.HandlerFunc(whoami))
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err = kube.Open(kube.Config{ServiceAccount: dir})
	wants(t, err, "KUBERNETES_SERVICE_HOST", "kubeconfig")
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	_, err = kube.Open(kube.Config{ServiceAccount: dir})
	wants(t, err, filepath.Join(dir, "token"), "kubeconfig")

	file(t, filepath.Join(dir, "token"), "pod\n")
	file(t, filepath.Join(dir, "ca.crt"), string(a.pem))
	if got := open(t, kube.Config{ServiceAccount: dir}).Namespace(); got != "kube-system" {
		t.Errorf("namespace %q without a file of it", got)
	}
	file(t, filepath.Join(dir, "namespace"), "rails\n")
	client := open(t, kube.Config{ServiceAccount: dir})
	if client.Namespace() != "rails" {
		t.Errorf("namespace %q", client.Namespace())
	}
	got, err := client.Get(within(t, 5*time.Second), pools, "x")
	if err != nil || !strings.Contains(string(got), "Bearer pod") {
		t.Errorf("%s, %v", got, err)
	}
}

// A replaced token is used by the next client. A running client uses it as soon as the
// server refuses the old token. The token is in its own file or, as whereabouts' installer
// does it, in the kubeconfig.
func TestRotatedToken(t *testing.T) {
	a := newAuthority(t)
	var valid atomic.Pointer[string]
	server := a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*valid.Load() {
			refuse(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
			return
		}
		answer(w, http.StatusOK, "{}")
	}))
	inFile := kubeconfig(t, server.URL, ca(a), "tokenFile: token")
	token := filepath.Join(filepath.Dir(inFile), "token")
	for _, c := range []struct {
		name, path, where string
		rotate            func(to string)
	}{
		{"in its file", inFile, "the token in " + token, func(to string) { file(t, token, to) }},
		{"in the kubeconfig", inFile + "2", "the token in kubeconfig " + inFile + "2", func(to string) {
			content, err := os.ReadFile(kubeconfig(t, server.URL, ca(a), "token: "+to))
			if err != nil {
				t.Fatal(err)
			}
			file(t, inFile+"2", string(content))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.rotate("first")
			living := open(t, kube.Config{Kubeconfig: c.path})
			for _, to := range []string{"first", "second", "third"} {
				c.rotate(to)
				valid.Store(&to)
				for name, client := range map[string]*kube.Client{"living": living, "new": open(t, kube.Config{Kubeconfig: c.path})} {
					if _, err := client.Get(within(t, 5*time.Second), pools, "x"); err != nil {
						t.Errorf("%s client, %s token: %v", name, to, err)
					}
				}
			}
			nobodys := "nobody's"
			valid.Store(&nobodys)
			_, err := living.Get(within(t, 5*time.Second), pools, "x")
			wants(t, err, c.where, "get ippools kube-system/x", server.URL, "401")
			if kube.IsUnavailable(err) || failure.KindOf(err) != failure.InvalidConfig {
				t.Errorf("%v has code %d, and is said to pass by itself: %v", err, cnierr.Code(err), kube.IsUnavailable(err))
			}
		})
	}
}

func TestRotatedCA(t *testing.T) {
	first, second := newAuthority(t), newAuthority(t)
	var current atomic.Pointer[tls.Certificate]
	one, two := first.server("api.test"), second.server("api.test")
	current.Store(&one)
	server := httptest.NewUnstartedServer(http.HandlerFunc(whoami))
	server.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*current.Load()}}, nil
		},
	}
	server.Config.ErrorLog = quiet
	server.StartTLS()
	defer server.Close()

	path := kubeconfig(t, server.URL, "certificate-authority: ca.crt", "token: t")
	trusted := file(t, filepath.Join(filepath.Dir(path), "ca.crt"), string(first.pem))
	living := open(t, kube.Config{Kubeconfig: path})
	get := func() error {
		_, err := living.Get(within(t, 20*time.Second), pools, "x")
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	current.Store(&two)
	server.CloseClientConnections()
	began := time.Now()
	err := get()
	wants(t, err, "unknown authority", "kubeconfig "+path, server.URL)
	if kube.IsUnavailable(err) || failure.KindOf(err) != failure.InvalidConfig {
		t.Errorf("%v has code %d, and is said to pass by itself: %v", err, cnierr.Code(err), kube.IsUnavailable(err))
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a server that is not to be trusted was asked again, for %s", took)
	}
	file(t, trusted, string(second.pem))
	for name, client := range map[string]*kube.Client{"living": living, "new": open(t, kube.Config{Kubeconfig: path})} {
		if _, err := client.Get(within(t, 5*time.Second), pools, "x"); err != nil {
			t.Errorf("%s client with the new CA: %v", name, err)
		}
	}
}

// The environment is read once in a process, so each case is a process.
func TestProxyOfTheEnvironment(t *testing.T) {
	const configs = "RAIL_CNI_TEST_KUBECONFIG"
	if path := os.Getenv(configs); path != "" {
		_, err := open(t, kube.Config{Kubeconfig: path}).Get(within(t, time.Second), pools, "x")
		fmt.Println("GOT:", err)
		return
	}
	a := newAuthority(t)
	server := a.serve(http.HandlerFunc(whoami))
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	defer proxy.Close()
	for _, c := range []struct {
		server string
		direct bool
	}{
		{server.URL, true},
		{"https://127.1.2.3:" + port, true}, // no listener: refused, without a proxy
		{"https://[::1]:" + port, true},
		{"https://localhost:" + port, true},
		{"https://192.0.2.1:443", false}, // RFC 5737: not in use
	} {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxyOfTheEnvironment$", "-test.v")
		child.Env = append(os.Environ(), configs+"="+kubeconfig(t, c.server, ca(a), "token: t"), "HTTPS_PROXY="+proxy.URL, "NO_PROXY=")
		out, err := child.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "GOT:") {
			t.Fatalf("%s: %v: %s", c.server, err, out)
		}
		if through := strings.Contains(string(out), "teapot"); through == c.direct {
			t.Errorf("%s: direct is %v, must be %v: %s", c.server, !through, c.direct, out)
		}
	}
}

// The author of a network may name another file as the kubeconfig, and sees the error, for
// example in the pod's Events.
func TestAnErrorQuotesNothingOfAFileThatIsNoKubeconfig(t *testing.T) {
	for name, text := range map[string]string{
		"a password":      "hunter2\n",
		"a longer one":    "hunter2hunter2hunter2\n",
		"a word of keys":  "users: hunter2\n",
		"a list":          "[hunter2]\n",
		"no data":         "clusters: [{cluster: {certificate-authority-data: [hunter2]}}]\n",
		"no base64":       "clusters: [{cluster: {certificate-authority-data: hunter2!}}]\n",
		"no word of bool": "clusters: [{cluster: {insecure-skip-tls-verify: hunter2}}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t, filepath.Join(t.TempDir(), "kubeconfig"), text)
			_, err := kube.Open(kube.Config{Kubeconfig: path})
			wants(t, err, path)
			if strings.Contains(err.Error(), "hunter2") {
				t.Error(err)
			}
		})
	}
}
