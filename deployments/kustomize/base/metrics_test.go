package base_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// secretDir returns a mounted Secret with a self-signed certificate.
func secretDir(t *testing.T) (dir string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir, pool = t.TempDir(), x509.NewCertPool()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool.AppendCertsFromPEM(text)
	err = errors.Join(os.WriteFile(filepath.Join(dir, "tls.crt"), text, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return dir, pool
}

// serving runs an agent with the flags under the account of the DaemonSet, and
// returns the address of its metrics.
func (c *cluster) serving(t *testing.T, args ...string) (address string, log *bytes.Buffer) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, log = l.Addr().String(), &bytes.Buffer{}
	_ = l.Close()
	agent := exec.Command(filepath.Join(testnet.Bin(t), "rail-agent"), append([]string{
		"run", "--node", "node1", "--kubeconfig", c.kubeconfig("rail-cni-agent"),
		"--state-dir", filepath.Join(scratch.Dir(t), "state"), "--metrics", address,
	}, args...)...)
	agent.Stderr = log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		if err := agent.Wait(); err != nil || t.Failed() {
			t.Errorf("%v\n%s", err, log)
		}
	})
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return address, log
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("it does not listen")
		}
	}
}

func TestSecureMetricsAreForThoseWhoMayGetThem(t *testing.T) {
	c := newCluster(t)
	text := run(t, testnet.Tool(t, "helm", "tools"), "template", "rail-cni", chart, "--namespace", "kube-system", "--set", "metrics.secure=true", "--show-only", "templates/agent.yaml")
	for _, object := range bytes.Split(bytes.TrimPrefix(bytes.TrimSpace(text), []byte("---\n")), []byte("\n---\n")) {
		if bytes.Contains(object, []byte("name: rail-cni-agent-metrics\n")) {
			c.apply(object, map[string]map[string]bool{})
		}
	}
	c.apply([]byte("kind: ClusterRole\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: scraper}\nrules:\n- nonResourceURLs: [/metrics]\n  verbs: [get]\n"), map[string]map[string]bool{})
	c.apply([]byte("kind: ClusterRoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: scraper}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper}\n"+
		"subjects: [{kind: ServiceAccount, name: prometheus, namespace: kube-system}]\n"), map[string]map[string]bool{})
	tokens := map[string]string{"": "", "false": "x.y.z"}
	for _, account := range []string{"prometheus", "other"} {
		credential, err := c.plane.ServiceAccount(t.Context(), "kube-system", account)
		if err != nil {
			t.Fatal(err)
		}
		tokens[account] = credential.Token
	}
	dir, pool := secretDir(t)
	for name, of := range map[string]struct {
		args []string
		tls  *tls.Config
	}{
		"its own certificate": {nil, &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // the certificate is not verifiable
		"a certificate that a scraper checks": {
			[]string{"--metrics-cert", dir}, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := c.serving(t, append(of.args, "--metrics-secure")...)
			client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: of.tls}}
			get := func(path, token string) (int, string) {
				t.Helper()
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if token != "" {
					request.Header.Set("Authorization", "Bearer "+token)
				}
				answer, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				body, err := io.ReadAll(answer.Body)
				if err != nil {
					t.Fatal(err)
				}
				return answer.StatusCode, string(body)
			}
			for account, want := range map[string]int{"": 401, "false": 401, "other": 403, "prometheus": 200} {
				for range 2 { // the second time from the cache
					if code, body := get("/metrics", tokens[account]); code != want || strings.Contains(body, "rail_cni_") != (want == 200) {
						t.Errorf("account %q: %d, %.100s", account, code, body)
					}
				}
			}
			if code, body := get("/healthz", ""); code != http.StatusOK {
				t.Errorf("/healthz: %d, %s", code, body)
			}
			if answer, err := http.Get("http://" + address + "/metrics"); err == nil { //nolint:noctx // it is refused
				defer answer.Body.Close()
				if answer.StatusCode == http.StatusOK {
					t.Error("without TLS it answers too")
				}
			}
		})
	}
}
