package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/deployments/crds"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Options describes a control plane. The zero value suits a test.
type Options struct {
	// Binaries is the directory of etcd and kube-apiserver. "" =
	// RAIL_CNI_CONTROLPLANE of the environment, then bin/tools/controlplane of
	// the checkout that the process works in.
	Binaries string
	// Etcd is the path of an etcd that replaces the one in Binaries.
	Etcd string
	// Fsync makes etcd wait for the disk at each write, as in production. An
	// etcd older than 3.5 always does. Without it, written data survive the
	// death of etcd, but not that of the machine.
	Fsync bool
	// Audit makes kube-apiserver keep the log that [Plane.Requests] reads.
	Audit bool
	// CRDs are definitions beside those of deployments/crds: JSON or YAML, one
	// object each.
	CRDs [][]byte
	// APIServerArgs are further flags of kube-apiserver.
	APIServerArgs []string
	// Cluster makes it the control plane of nodes; nil = no nodes.
	Cluster *ClusterOptions
}

// ClusterOptions describes how nodes reach a control plane. The plane then runs
// kube-scheduler and kube-controller-manager too, and authenticates kubelets by
// certificates of its CA, in both directions.
type ClusterOptions struct {
	// Netns is the path of the network namespace that all processes run in,
	// with its loopback up and [ServiceAddress] on it. kube-apiserver listens
	// there on port 443 of all addresses, etcd on loopback. This process hands
	// on connections from the plane's address here, as [Plane.Reach] does.
	Netns string
	// Address is where nodes reach the namespace.
	Address string
}

// ServiceAddress is the address of the service "kubernetes" in the namespace
// "default", which pods have in their environment. It is the first of
// --service-cluster-ip-range.
const ServiceAddress = "10.96.0.1"

// Plane is a running control plane. Its methods may be called concurrently.
type Plane struct {
	dir      string
	options  Options
	address  string // of kube-apiserver, host:port
	server   string // the same as an URL
	inner    string // where kube-apiserver listens, in netns
	etcdURL  string
	netns    *netns.Netns // nil = that of this process
	binaries struct{ etcd, apiserver, scheduler, controllers string }
	serves   []string // paths that answer when the server is ready; set by New

	sent, received atomic.Int64 // bytes of ended connections through reaches

	trust sync.RWMutex // holds the two below
	ca    *authority
	admin *Client

	mu              sync.Mutex
	etcd, apiserver *process.Process // nil when killed
	controllers     []*process.Process
	killed          time.Time
	reaches         map[*reach]bool
}

// patience bounds each wait for a process to become ready: they take 3 s on an
// idle machine with two cores, and 10 s under load.
const patience = 2 * time.Minute

// Start starts a control plane that ends with the test.
func Start(t testing.TB, o Options) *Plane {
	t.Helper()
	p, err := New(t.Context(), t.TempDir(), o)
	need.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// New starts a control plane, with all its files in the empty directory dir,
// and waits until it is ready and serves the CRDs. The caller must close it.
// After an error nothing is left running.
func New(ctx context.Context, dir string, o Options) (*Plane, error) {
	p := &Plane{dir: dir, options: o, reaches: map[*reach]bool{}}
	if err := p.find(); err != nil {
		return nil, err
	}
	if o.Cluster != nil {
		var err error
		if p.netns, err = netns.Open(o.Cluster.Netns); err != nil {
			return nil, err
		}
		p.reaches[&reach{plane: p, conns: map[net.Conn]bool{}}] = true // opened with the server
	}
	var err error
	for range 3 {
		// Another process may take a port between the check and its use.
		if err = p.begin(ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
			break
		}
		p.stop()
	}
	if err == nil {
		err = p.define(ctx)
	}
	if err == nil && o.Cluster != nil {
		err = p.startControllers(ctx)
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("control plane: %w", err)
	}
	return p, nil
}

// Built returns a directory of built files: the value of the environment
// variable or else, in the checkout of the working directory, the path below
// bin/.
func Built(variable string, path ...string) (string, error) {
	if dir := os.Getenv(variable); dir != "" {
		return dir, nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	below := filepath.Join(append([]string{"bin"}, path...)...)
	for dir := wd; ; dir = filepath.Dir(dir) {
		built := filepath.Join(dir, below)
		if _, err := os.Stat(built); err == nil || dir == filepath.Dir(dir) {
			return built, nil
		}
	}
}

// find finds the binaries.
func (p *Plane) find() error {
	dir := p.options.Binaries
	if dir == "" {
		var err error
		if dir, err = Built("RAIL_CNI_CONTROLPLANE", "tools", "controlplane"); err != nil {
			return err
		}
	}
	p.binaries.etcd, p.binaries.apiserver = filepath.Join(dir, "etcd"), filepath.Join(dir, "kube-apiserver")
	if p.options.Etcd != "" {
		p.binaries.etcd = p.options.Etcd
	}
	binaries, target := []string{p.binaries.etcd, p.binaries.apiserver}, "controlplane"
	if p.options.Cluster != nil {
		p.binaries.scheduler, p.binaries.controllers = filepath.Join(dir, "kube-scheduler"), filepath.Join(dir, "kube-controller-manager")
		binaries, target = append(binaries, p.binaries.scheduler, p.binaries.controllers), "cluster-binaries"
	}
	for _, binary := range binaries {
		if err := need.Built(binary, target); err != nil {
			return fmt.Errorf("control plane: %w", err)
		}
	}
	return nil
}

// begin makes certificates and starts both processes on free ports.
func (p *Plane) begin(ctx context.Context) error {
	var addresses [2]string
	for i := range addresses {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		addresses[i] = address
	}
	p.etcdURL, p.address = "http://"+addresses[0], addresses[1]
	p.inner, p.server = p.address, "https://"+p.address
	if p.netns != nil {
		p.inner = "127.0.0.1:443"
	}
	if err := p.secrets(); err != nil {
		return err
	}
	if err := p.StartEtcd(ctx); err != nil {
		return err
	}
	return p.StartAPIServer(ctx)
}

// freeAddress returns an address of loopback that nobody listens on. Its port is
// below those that the kernel gives to clients (ip_local_port_range), so that a
// server that was killed gets it again.
func freeAddress() (string, error) {
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 16384+mathrand.IntN(16000)))
		if err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", errors.New("no free port between 16384 and 32384 on loopback")
}

// file returns the path of a file of the plane.
func (p *Plane) file(name string) string { return filepath.Join(p.dir, name) }

// secrets makes the certificates and the key that signs the tokens of service
// accounts, and writes the files that kube-apiserver reads.
func (p *Plane) secrets() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := keyPEM(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	err = writeFiles(map[string][]byte{
		p.file("account.key"):  private,
		p.file("account.pub"):  pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		p.file("audit.policy"): []byte(auditPolicy),
	})
	if err != nil {
		return err
	}
	return p.certify(nil)
}

// certify makes a CA, kube-apiserver's certificate and the administrator's. The
// server also accepts client certificates of the CAs in known, PEM.
func (p *Plane) certify(known []byte) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	cert, key, err := ca.server("kube-apiserver", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"127.0.0.1", "::1", ServiceAddress, p.nodesAddress())
	if err != nil {
		return err
	}
	err = writeFiles(map[string][]byte{
		p.file("clients.crt"):   append(known, ca.pem...),
		p.file("apiserver.crt"): cert,
		p.file("apiserver.key"): key,
	})
	if err != nil {
		return err
	}
	p.trust.Lock()
	p.ca = ca
	p.trust.Unlock()
	c, err := p.CertificateFor("admin", "system:masters")
	if err != nil {
		return err
	}
	admin, err := p.Client(c)
	if err != nil {
		return err
	}
	p.trust.Lock()
	p.admin = admin
	p.trust.Unlock()
	_, err = p.Kubeconfig(c, Form{Path: p.AdminKubeconfig()})
	if err != nil || p.options.Cluster == nil {
		return err
	}
	return writeFiles(map[string][]byte{p.file("kubelets.crt"): c.Certificate, p.file("kubelets.key"): c.Key})
}

// nodesAddress returns the address at which nodes reach the plane, "" without
// nodes.
func (p *Plane) nodesAddress() string {
	if p.options.Cluster == nil {
		return ""
	}
	return p.options.Cluster.Address
}

// RotateCA replaces the CA, and restarts kube-apiserver with a certificate of
// the new one. Earlier clients and kubeconfigs know only the old CA, and no
// longer trust the server; a client that trusts the new CA may still use an old
// client certificate or token. [Plane.Admin] and the file of
// [Plane.AdminKubeconfig] are replaced.
func (p *Plane) RotateCA(ctx context.Context) error {
	known, err := os.ReadFile(p.file("clients.crt"))
	if err != nil {
		return err
	}
	p.KillAPIServer()
	if err := p.certify(known); err != nil {
		return err
	}
	return p.StartAPIServer(ctx)
}

// StartEtcd starts etcd with the data of the killed one, and waits until it is
// ready. It does nothing if etcd runs.
func (p *Plane) StartEtcd(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.etcd != nil {
		return nil
	}
	args := []string{
		p.binaries.etcd,
		"--data-dir", p.file("etcd"),
		"--listen-client-urls", p.etcdURL, "--advertise-client-urls", p.etcdURL,
		"--listen-peer-urls", "http://127.0.0.1:0", // there are no peers
		"--logger", "zap", "--log-level", "warn",
	}
	if !p.options.Fsync {
		if help, err := exec.Command(p.binaries.etcd, "--help").CombinedOutput(); err != nil {
			return fmt.Errorf("%s --help: %w", p.binaries.etcd, err)
		} else if strings.Contains(string(help), "--unsafe-no-fsync") {
			args = append(args, "--unsafe-no-fsync")
		}
	}
	etcd, err := p.launch(args...)
	if err != nil {
		return err
	}
	if err := etcd.Poll(ctx, patience, func(ctx context.Context) error { return p.etcdGet(ctx, "/health", nil) }); err != nil {
		etcd.Kill()
		return err
	}
	p.etcd = etcd
	return nil
}

// etcdGet reads a JSON document from etcd's HTTP endpoint.
func (p *Plane) etcdGet(ctx context.Context, path string, out any) error {
	body, err := p.etcdText(ctx, path)
	if err == nil && out != nil {
		err = json.Unmarshal(body, out)
	}
	return err
}

// etcdText reads from etcd's HTTP endpoint.
func (p *Plane) etcdText(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.etcdURL+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true, DialContext: p.dial}).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd answers %s to %s: %s", resp.Status, path, body)
	}
	return body, err
}

// Metrics returns the metrics of both servers, in Prometheus' text format.
func (p *Plane) Metrics(ctx context.Context) (etcd, apiserver string, err error) {
	e, err := p.etcdText(ctx, "/metrics")
	if err != nil {
		return "", "", err
	}
	code, a, err := p.Admin().Get(ctx, "/metrics")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("the API server answers %d to /metrics: %s", code, a)
	}
	return string(e), string(a), err
}

// KillEtcd kills etcd (SIGKILL), also when it is paused.
func (p *Plane) KillEtcd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.etcd != nil {
		p.etcd.Kill()
		p.etcd = nil
	}
}

// PauseEtcd stops etcd without ending it (SIGSTOP): kube-apiserver goes on, and
// its requests to etcd hang.
func (p *Plane) PauseEtcd() error { return p.withEtcd((*process.Process).Pause) }

// ResumeEtcd lets a paused etcd go on (SIGCONT).
func (p *Plane) ResumeEtcd() error { return p.withEtcd((*process.Process).Resume) }

func (p *Plane) withEtcd(do func(*process.Process) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.etcd == nil {
		return errors.New("etcd does not run")
	}
	return do(p.etcd)
}

// StartAPIServer starts kube-apiserver at its earlier address, and waits until
// it is ready, which requires etcd. It does nothing if the server runs.
func (p *Plane) StartAPIServer(ctx context.Context) error {
	p.mu.Lock()
	if p.apiserver != nil {
		p.mu.Unlock()
		return nil
	}
	err := p.launchAPIServer(ctx)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return p.WaitReady(ctx)
}

// launchAPIServer only waits until the server listens. The caller holds p.mu.
func (p *Plane) launchAPIServer(ctx context.Context) error {
	host, port, err := net.SplitHostPort(p.inner)
	if err != nil {
		return err
	}
	args := p.apiserverArgs(host, port)
	if p.options.Audit {
		args = append(args, "--audit-policy-file="+p.file("audit.policy"), "--audit-log-path="+p.auditLog(),
			"--audit-log-maxsize=1000000") // one file, whatever comes
	}
	apiserver, err := p.launch(args...)
	if err != nil {
		return err
	}
	err = apiserver.Poll(ctx, patience, func(ctx context.Context) error {
		conn, err := p.dial(ctx, "tcp", p.inner)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	if err != nil {
		apiserver.Kill()
		return err
	}
	p.apiserver = apiserver
	for r := range p.reaches {
		if err := r.open(); err != nil {
			return err
		}
	}
	return nil
}

// apiserverArgs returns the command line of a kube-apiserver that listens on host and port,
// without an audit log. Of a cluster's it listens on all addresses.
func (p *Plane) apiserverArgs(host, port string) []string {
	args := []string{
		p.binaries.apiserver,
		"--etcd-servers=" + p.etcdURL,
		"--secure-port=" + port,
		"--endpoint-reconciler-type=none",
		"--cert-dir=" + p.dir,
		"--tls-cert-file=" + p.file("apiserver.crt"), "--tls-private-key-file=" + p.file("apiserver.key"),
		"--client-ca-file=" + p.file("clients.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.file("account.pub"), "--service-account-signing-key-file=" + p.file("account.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
	}
	if cluster := p.options.Cluster; cluster != nil {
		args = append(args, "--bind-address=0.0.0.0", "--advertise-address="+cluster.Address,
			"--enable-admission-plugins=NodeRestriction",
			"--kubelet-client-certificate="+p.file("kubelets.crt"), "--kubelet-client-key="+p.file("kubelets.key"),
			"--kubelet-certificate-authority="+p.file("clients.crt"), "--kubelet-preferred-address-types=InternalIP")
	} else {
		args = append(args, "--bind-address="+host, "--advertise-address="+host,
			// This plugin refuses pods without the account "default", which no
			// controller makes.
			"--disable-admission-plugins=ServiceAccount")
	}
	return append(args, p.options.APIServerArgs...)
}

// WaitReady waits until kube-apiserver is ready and answers for each CRD: for
// some time after it reports ready it answers 429, "storage is
// (re)initializing", to requests for CRs.
func (p *Plane) WaitReady(ctx context.Context) error {
	p.mu.Lock()
	apiserver := p.apiserver
	p.mu.Unlock()
	if apiserver == nil {
		return errors.New("kube-apiserver does not run")
	}
	for _, path := range append([]string{"/readyz"}, p.serves...) {
		err := apiserver.Poll(ctx, patience, func(ctx context.Context) error {
			return p.Admin().into(ctx, nil, http.MethodGet, path, "", nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// KillAPIServer kills kube-apiserver (SIGKILL).
func (p *Plane) KillAPIServer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.apiserver == nil {
		return
	}
	for r := range p.reaches {
		r.refuse()
	}
	p.apiserver.Kill()
	p.apiserver = nil
	p.killed = time.Now()
	for r := range p.reaches {
		r.cut()
	}
}

// RestartAPIServer kills kube-apiserver, starts it again and waits until it is
// ready.
func (p *Plane) RestartAPIServer(ctx context.Context) error {
	p.KillAPIServer()
	return p.StartAPIServer(ctx)
}

// stop kills all processes.
func (p *Plane) stop() {
	for _, c := range p.controllers {
		c.Kill()
	}
	p.controllers = nil
	p.KillAPIServer() // first: without etcd it only logs errors
	p.KillEtcd()
}

// Close ends everything. It may be called again.
func (p *Plane) Close() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.reaches {
		p.leave(r)
	}
	if p.netns != nil {
		p.netns.Close()
		p.netns = nil
	}
}

// Admin returns a client of a cluster administrator.
// [Plane.RotateCA] replaces it.
func (p *Plane) Admin() *Client {
	p.trust.RLock()
	defer p.trust.RUnlock()
	return p.admin
}

// Server returns the URL of kube-apiserver. It stays the same over restarts.
func (p *Plane) Server() string { return p.server }

// CA returns the certificate of the CA that signed all others, as PEM.
func (p *Plane) CA() []byte { return p.authority().pem }

func (p *Plane) authority() *authority {
	p.trust.RLock()
	defer p.trust.RUnlock()
	return p.ca
}

// Versions returns the versions of etcd and kube-apiserver, for example
// "3.6.16" and "v1.36.3".
func (p *Plane) Versions(ctx context.Context) (etcd, apiserver string, err error) {
	var e struct{ Etcdserver string }
	var a struct{ GitVersion string }
	err = errors.Join(p.etcdGet(ctx, "/version", &e), p.Admin().into(ctx, &a, http.MethodGet, "/version", "", nil))
	return e.Etcdserver, a.GitVersion, err
}

// define creates all CRDs, and waits until the server serves them and has made
// its own namespaces.
func (p *Plane) define(ctx context.Context) error {
	objects := slices.Clone(p.options.CRDs)
	entries, err := fs.ReadDir(crds.Files, ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := crds.Files.ReadFile(e.Name())
		if err != nil {
			return err
		}
		objects = append(objects, text)
	}
	serves := []string{"/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"}
	for _, text := range objects {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Plural string }
				Versions []struct{ Name string }
			}
		}
		if err := p.Admin().into(ctx, &crd, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", YAML, text); err != nil {
			return err
		}
		serves = append(serves, fmt.Sprintf("/apis/%s/%s/%s", crd.Spec.Group, crd.Spec.Versions[0].Name, crd.Spec.Names.Plural))
	}
	p.serves = serves
	return p.WaitReady(ctx)
}
