package kube

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

// theirs returns client-go's interpretation of a kubeconfig.
func theirs(path string) (*url.URL, *transport.Config, error) {
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, nil, err
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, nil, err
	}
	r, err := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(r)
	if err != nil {
		return nil, nil, err
	}
	t, err := r.TransportConfig()
	return base, t, err
}

// proxyOf returns the proxy for a request to the server.
func proxyOf(t *transport.Config) string {
	if t.Proxy == nil {
		return ""
	}
	r, err := http.NewRequest(http.MethodGet, "https://10.96.0.1", http.NoBody)
	if err != nil {
		return err.Error()
	}
	u, err := t.Proxy(r)
	return fmt.Sprint(u, err)
}

// comparable returns t without its functions.
func comparable(t *transport.Config) *transport.Config {
	c := *t
	c.Proxy, c.WrapTransport, c.DialHolder, c.TLS.GetCertHolder = nil, nil, nil, nil
	if len(c.Impersonate.Extra) == 0 {
		c.Impersonate.Extra = nil
	}
	return &c
}

// Users know client-go, so each kubeconfig must have the same meaning here, unless it
// names a program for credentials.
func TestAKubeconfigMeansWhatItMeansToClientGo(t *testing.T) {
	for _, c := range []struct {
		name, cluster, user string
		edit                []string // of the whole file: old, new, …
	}{
		{name: "nothing more", cluster: "{}", user: "{}"},
		{name: "everything of a cluster", cluster: "tls-server-name: api\ncertificate-authority: file\nproxy-url: socks5://127.0.0.1:1080\ndisable-compression: true", user: "token: t"},
		{name: "CA as data", cluster: "certificate-authority-data: Zm9v", user: "token: t"},
		{name: "CA as data of several lines", cluster: "certificate-authority-data: |\n  Zm9v\n  Zm9v", user: "token: t"},
		{name: "CA that is no base64", cluster: "certificate-authority-data: '!'", user: "token: t"},
		{name: "CA twice", cluster: "certificate-authority-data: Zm9v\ncertificate-authority: file", user: "token: t"},
		{name: "CA that is not there", cluster: "certificate-authority: none", user: "token: t"},
		{name: "insecure", cluster: "insecure-skip-tls-verify: true", user: "token: t"},
		{name: "insecure, as a word of YAML 1.1", cluster: "insecure-skip-tls-verify: yes", user: "token: t"},
		{name: "insecure, as a string", cluster: "insecure-skip-tls-verify: 'maybe'", user: "token: t"},
		{name: "proxy without a scheme", cluster: "proxy-url: 127.0.0.1:8080", user: "token: t"},
		{name: "proxy of an unknown scheme", cluster: "proxy-url: ftp://127.0.0.1", user: "token: t"},
		{name: "numbers in quotes", cluster: "{}", user: "username: '7'\npassword: '123456'"},
		{name: "null", cluster: "tls-server-name: null", user: "token: ~"},
		{name: "a key twice", cluster: "tls-server-name: a\ntls-server-name: b", user: "token: t\ntoken: u"},
		{name: "an unknown key twice", cluster: "{}", user: "token: t\nfoo: {a: 1, a: 2}\nfoo: [1]"},
		{name: "unknown keys", cluster: "server-name: x\nSERVER: y", user: "Token: t\nfoo: [1]"},
		{name: "token and token file", cluster: "{}", user: "token: t\ntokenFile: file"},
		{name: "token file", cluster: "{}", user: "tokenFile: file"},
		{name: "token file that is not there", cluster: "{}", user: "tokenFile: none"},
		{name: "token, and token file that is not there", cluster: "{}", user: "token: t\ntokenFile: none"},
		{name: "token and user", cluster: "{}", user: "token: t\nusername: u"},
		{name: "token file and user", cluster: "{}", user: "tokenFile: file\nusername: u\npassword: p"},
		{name: "password alone", cluster: "{}", user: "password: p"},
		{name: "certificate and token", cluster: "{}", user: "client-certificate: file\nclient-key: ./file\ntoken: t"},
		{name: "certificate as data", cluster: "{}", user: "client-certificate-data: Zm9v\nclient-key-data: Zm9v"},
		{name: "certificate as data and file", cluster: "{}", user: "client-certificate-data: Zm9v\nclient-certificate: file\nclient-key-data: Zm9v"},
		{name: "key as data and file", cluster: "{}", user: "client-certificate-data: Zm9v\nclient-key: file\nclient-key-data: Zm9v"},
		{name: "certificate without a key", cluster: "{}", user: "client-certificate: file"},
		{name: "key without a certificate", cluster: "{}", user: "client-key: none"},
		{name: "certificate that is not there", cluster: "{}", user: "client-certificate: none\nclient-key: file"},
		{name: "key that is not there", cluster: "{}", user: "client-certificate: file\nclient-key: none"},
		{name: "in the name of another", cluster: "{}", user: "as: a\nas-uid: '7'\nas-groups: [g, h]\nas-user-extra: {k: [v, w]}"},
		{name: "in the name of nobody", cluster: "{}", user: "as-groups: [g]"},
		{name: "auth provider", cluster: "{}", user: "auth-provider: {name: gcp, config: {a: b}}"},
		{name: "without TLS", cluster: "certificate-authority: file", user: "tokenFile: none\nas: a", edit: []string{"https://", "http://"}},
		{name: "without a scheme", cluster: "{}", user: "token: t", edit: []string{"https://", ""}},
		{name: "with a path", cluster: "{}", user: "token: t", edit: []string{":6443", ":6443/a/b/?q#f"}},
		{name: "with a slash", cluster: "{}", user: "token: t", edit: []string{":6443", ":6443/"}},
		{name: "without a scheme, with a path", cluster: "{}", user: "token: t", edit: []string{"https://10.96.0.1:6443", "10.96.0.1:6443/a"}},
		{name: "two users of a name", cluster: "{}", user: "{}", edit: []string{"users:", "users:\n- {name: u, user: {token: t}}"}},
		{name: "two other users of a name", cluster: "{}", user: "{}", edit: []string{"users:", "users:\n- {name: v}\n- {name: v}"}},
		{name: "a namespace", cluster: "{}", user: "{}", edit: []string{"user: u}", "user: u, namespace: n-1}"}},
		{name: "a namespace that is none", cluster: "{}", user: "{}", edit: []string{"user: u}", "user: u, namespace: n_1}"}},
		{name: "no kind", cluster: "{}", user: "token: t", edit: []string{"kind: Config\n", ""}},
		{name: "no version", cluster: "{}", user: "token: t", edit: []string{"apiVersion: v1\n", ""}},
		{name: "another version", cluster: "{}", user: "token: t", edit: []string{"apiVersion: v1\n", "apiVersion: v2\n"}},
		{name: "another kind", cluster: "{}", user: "token: t", edit: []string{"kind: Config\n", "kind: Pod\n"}},
		{name: "a second document", cluster: "{}", user: "token: t", edit: []string{"users:", "preferences: {colors: true}\nusers:", "user: u}", "user: u}\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			indent := func(s string) string { return strings.ReplaceAll(s, "\n", "\n    ") }
			text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- {name: c, context: {cluster: k, user: u}}\n" +
				"clusters:\n- name: k\n  cluster:\n    " + strings.TrimSuffix(indent("server: https://10.96.0.1:6443\n"+strings.TrimPrefix(c.cluster, "{}")), "\n    ") + "\n" +
				"users:\n- name: u\n  user:\n    " + indent(c.user) + "\n"
			for i := 0; i < len(c.edit); i += 2 {
				text = strings.Replace(text, c.edit[i], c.edit[i+1], 1)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "kubeconfig")
			for name, content := range map[string]string{path: text, filepath.Join(dir, "file"): "content\n"} {
				if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ours, err := (&Config{Kubeconfig: path}).loadKubeconfig()
			wantBase, want, wantErr := theirs(path)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%v; client-go: %v", err, wantErr)
			}
			if err != nil {
				return
			}
			if ours.Server.String() != wantBase.String() {
				t.Errorf("server %s; client-go: %s", ours.Server, wantBase)
			}
			if got, want := comparable(ours.Transport), comparable(want); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v\nclient-go: %+v", got, want)
			}
			if got, want := proxyOf(ours.Transport), proxyOf(want); got != want {
				t.Errorf("proxy %s; client-go: %s", got, want)
			}
		})
	}
}
