package kube

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

// This file runs the program that provides a kubeconfig's credentials. Source:
// Kubernetes, "Authenticating", client-go credential plugins.

const (
	execGroup     = "client.authentication.k8s.io/"
	execExtension = "client.authentication.k8s.io/exec" // of a cluster: for the program
	execInfo      = "KUBERNETES_EXEC_INFO"
)

func (e *execConfig) check() error {
	mode := e.InteractiveMode
	if mode == "" && e.APIVersion == execGroup+"v1beta1" {
		mode = "IfAvailable"
	}
	var errs []error
	refuse := func(is bool, what string) {
		if is {
			errs = append(errs, errors.New("exec: "+what))
		}
	}
	refuse(e.Command == "", "no command")
	refuse(e.APIVersion == "", "no apiVersion")
	refuse(!slices.Contains([]string{"Never", "IfAvailable", "Always"}, mode), fmt.Sprintf("interactiveMode is %q, and must be Never, IfAvailable or Always", mode))
	refuse(slices.ContainsFunc(e.Env, func(v execEnv) bool { return v.Name == "" }), "an env without a name")
	return errors.Join(errs...)
}

// execCredential is the input of the program, and its answer.
type execCredential struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Cluster     *execCluster `json:"cluster,omitempty"`
		Interactive bool         `json:"interactive"`
	} `json:"spec"`
	Status *execStatus `json:"status,omitempty"`
}

type execCluster struct {
	Server             string `json:"server"`
	TLSServerName      string `json:"tls-server-name,omitempty"`
	Insecure           bool   `json:"insecure-skip-tls-verify,omitempty"`
	CAData             []byte `json:"certificate-authority-data,omitempty"`
	ProxyURL           string `json:"proxy-url,omitempty"`
	DisableCompression bool   `json:"disable-compression,omitempty"`
	Config             any    `json:"config,omitempty"`
}

type execStatus struct {
	Expires *time.Time `json:"expirationTimestamp,omitempty"`
	Token   string     `json:"token,omitempty"`
	Cert    string     `json:"clientCertificateData,omitempty"`
	Key     string     `json:"clientKeyData,omitempty"`
}

// authenticator runs the program if there are no credentials, if they have
// expired, and if the server refuses them.
type authenticator struct {
	exec  execConfig
	info  string // execInfo
	conns *connrotation.ConnectionTracker
	cert  transport.GetCertHolder
	dial  transport.DialHolder

	mu    sync.Mutex // also serializes runs of the program
	creds *credential
}

type credential struct {
	token   string
	cert    *tls.Certificate
	expires *time.Time
}

// authenticators are the authenticators by program, so that a client that reads
// its files again keeps its credentials.
var authenticators sync.Map

// provide makes t use the program's credentials, unless t has others.
func (e *execConfig) provide(c *clusterInfo, t *transport.Config) error {
	if e.APIVersion != execGroup+"v1" && e.APIVersion != execGroup+"v1beta1" {
		return fmt.Errorf("exec plugin: unknown apiVersion %q", e.APIVersion)
	}
	if t.HasTokenAuth() || t.HasBasicAuth() || t.HasCertAuth() {
		return nil
	}
	told := execCredential{APIVersion: e.APIVersion, Kind: "ExecCredential"}
	if e.ProvideClusterInfo {
		var err error
		if told.Spec.Cluster, err = c.forExec(); err != nil {
			return err
		}
	}
	info, err := json.Marshal(told)
	if err != nil {
		return fmt.Errorf("exec plugin: %w", err)
	}
	made := &authenticator{exec: *e, info: string(info), conns: connrotation.NewConnectionTracker()}
	made.cert.GetCert = made.certificate
	made.dial.Dial = connrotation.NewDialerWithTracker((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext, made.conns).DialContext
	found, _ := authenticators.LoadOrStore(fmt.Sprintf("%q", []any{made.exec, made.info}), made)
	a, _ := found.(*authenticator)
	t.TLS.GetCertHolder, t.DialHolder = &a.cert, &a.dial
	t.Wrap(func(base http.RoundTripper) http.RoundTripper { return &authenticated{a, base} })
	return nil
}

func (c *clusterInfo) forExec() (*execCluster, error) {
	told := &execCluster{
		Server: c.Server, TLSServerName: c.TLSServerName, Insecure: c.Insecure, CAData: c.CAData,
		ProxyURL: c.ProxyURL, DisableCompression: c.DisableCompression,
	}
	for _, e := range c.Extensions {
		if e.Name == execExtension {
			told.Config = e.Extension
		}
	}
	var err error
	if len(c.CAData) == 0 && c.CAFile != "" {
		told.CAData, err = os.ReadFile(c.CAFile)
	}
	return told, err
}

type authenticated struct {
	*authenticator
	base http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, so that its idle connections
// can be closed.
func (a *authenticated) WrappedRoundTripper() http.RoundTripper { return a.base }

func (a *authenticated) RoundTrip(r *http.Request) (*http.Response, error) {
	creds, err := a.get(nil)
	if err != nil {
		return nil, fmt.Errorf("getting credentials: %w", err)
	}
	if creds.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+creds.token)
	}
	answer, err := a.base.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusUnauthorized {
		_, _ = a.get(creds) // for the next try, which returns the error
	}
	return answer, err
}

func (a *authenticator) certificate() (*tls.Certificate, error) {
	creds, err := a.get(nil)
	if err != nil {
		return nil, err
	}
	return creds.cert, nil
}

// get returns credentials that have not expired and that the server has not refused.
func (a *authenticator) get(refused *credential) (*credential, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.creds
	if old != nil && old != refused && (old.expires == nil || !time.Now().After(*old.expires)) {
		return old, nil
	}
	fresh, err := a.run()
	if err != nil {
		return nil, err
	}
	a.creds = fresh
	if old != nil && !sameCertificate(old.cert, fresh.cert) {
		a.conns.CloseAll() // they use the old credentials
	}
	return fresh, nil
}

func sameCertificate(a, b *tls.Certificate) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Certificate, b.Certificate, bytes.Equal)
}

// run runs the program. Its standard input is not the plugin's, which is the
// network configuration.
func (a *authenticator) run() (*credential, error) {
	cmd := exec.Command(filepath.Clean(a.exec.Command), a.exec.Args...)
	cmd.Env = os.Environ()
	for _, v := range a.exec.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	cmd.Env = append(cmd.Env, execInfo+"="+a.info)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var missing *exec.Error
	var ended *exec.ExitError
	switch {
	case errors.As(err, &missing) && a.exec.InstallHint != "":
		return nil, fmt.Errorf("exec: executable %s not found: %q", cmd.Path, a.exec.InstallHint)
	case errors.As(err, &missing):
		return nil, fmt.Errorf("exec: executable %s not found", cmd.Path)
	case errors.As(err, &ended):
		return nil, fmt.Errorf("exec: executable %s failed with exit code %d", cmd.Path, ended.ExitCode())
	case err != nil:
		return nil, fmt.Errorf("exec: %w", err)
	}
	creds, err := a.parse(out)
	if err != nil {
		return nil, fmt.Errorf("exec: output of %s: %w", cmd.Path, err)
	}
	return creds, nil
}

func (a *authenticator) parse(out []byte) (*credential, error) {
	var answer execCredential
	if err := json.Unmarshal(asJSON(out), &answer); err != nil {
		return nil, err
	}
	s := answer.Status
	switch {
	case answer.Kind != "ExecCredential" || answer.APIVersion != a.exec.APIVersion:
		return nil, fmt.Errorf("kind %q of apiVersion %q, want ExecCredential of %q", answer.Kind, answer.APIVersion, a.exec.APIVersion)
	case s == nil:
		return nil, errors.New("no status")
	case s.Token == "" && s.Cert == "" && s.Key == "":
		return nil, errors.New("neither a token nor a certificate")
	case (s.Cert == "") != (s.Key == ""):
		return nil, errors.New("only one of certificate and key")
	}
	creds := &credential{token: s.Token}
	if s.Expires != nil && !s.Expires.IsZero() { // Go's zero time means that the program did not set it
		creds.expires = s.Expires
	}
	if s.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(s.Cert), []byte(s.Key))
		if err != nil {
			return nil, err
		}
		creds.cert = &pair
	}
	return creds, nil
}

// asJSON returns out, converted to JSON if it is a YAML object, which client-go
// accepts too.
func asJSON(out []byte) []byte {
	var object map[string]any
	if json.Valid(out) || yaml.Unmarshal(out, &object) != nil || object == nil {
		return out
	}
	if data, err := json.Marshal(object); err == nil {
		return data
	}
	return out
}
