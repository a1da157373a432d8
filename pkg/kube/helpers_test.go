package kube_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
)

var pools = kube.Resource{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Plural: "ippools", Namespace: "kube-system"}

// authority is a CA of a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, a.pem = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// sign makes a certificate; the first one is the authority's own.
func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// pair returns a certificate and its key, in PEM, for a server and a client.
func (a *authority) pair(name string) (cert, key []byte) {
	a.t.Helper()
	_, private, cert := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	})
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func (a *authority) server(name string) tls.Certificate {
	a.t.Helper()
	cert, err := tls.X509KeyPair(a.pair(name))
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// serve starts an HTTP/2 server with a certificate of a, on 127.0.0.1.
func (a *authority) serve(handler http.Handler) *httptest.Server {
	a.t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{a.server("api.test")}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	s.Config.ErrorLog = quiet
	s.StartTLS()
	a.t.Cleanup(s.Close)
	return s
}

// faulty is a server whose n-th answer (n from 1) the test chooses.
type faulty struct {
	*httptest.Server
	*kube.Client
	requests atomic.Int64
}

func newFaulty(t *testing.T, timeout time.Duration, answer func(n int64, w http.ResponseWriter, r *http.Request)) *faulty {
	t.Helper()
	f := &faulty{}
	a := newAuthority(t)
	f.Server = a.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(f.requests.Add(1), w, r)
	}))
	f.Client = open(t, kube.Config{Kubeconfig: kubeconfig(t, f.URL, ca(a), "token: secret"), Timeout: timeout})
	return f
}

func open(t testing.TB, c kube.Config) *kube.Client {
	t.Helper()
	client, err := kube.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func ca(a *authority) string {
	return "certificate-authority-data: " + base64.StdEncoding.EncodeToString(a.pem)
}

// kubeconfig writes a kubeconfig in the form of whereabouts' installer. cluster
// and user are lines of YAML.
func kubeconfig(t testing.TB, server, cluster, user string) string {
	t.Helper()
	indent := func(s string) string { return strings.ReplaceAll(s, "\n", "\n    ") }
	return file(t, filepath.Join(t.TempDir(), "kubeconfig"), fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: %s
    %s
users:
- name: whereabouts
  user:
    %s
contexts:
- name: whereabouts-context
  context:
    cluster: local
    user: whereabouts
current-context: whereabouts-context
`, server, indent(cluster), indent(user)))
}

func file(t testing.TB, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// answer writes JSON.
func answer(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body))
}

// refuse writes a Status object as an API server does.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, message, code))
}

// wants fails the test unless err's text has every part.
func wants(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; it must say %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q does not say %q", err, part)
		}
	}
}
