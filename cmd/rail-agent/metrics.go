package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// metricsFlags are the flags of "run" that decide who may read the metrics.
type metricsFlags struct {
	secure bool
	cert   string
}

func (f *metricsFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.secure, "metrics-secure", false, "serve --metrics by HTTPS, and /metrics only to tokens of the cluster that may get it")
	flags.StringVar(&f.cert, "metrics-cert", "", "directory with tls.crt and tls.key for --metrics-secure, read again when they change; self-signed when empty")
}

// begin sets o's options of how the metrics are served.
func (f *metricsFlags) begin(o *agent.Options, client *kube.Client) error {
	if o.Metrics == "" {
		return nil
	}
	if !f.secure {
		if host, _, err := net.SplitHostPort(o.Metrics); err == nil && !loopback(host) {
			o.Log.Warn("metrics are open to the network: see --metrics-secure", "address", o.Metrics)
		}
		return nil
	}
	if client == nil {
		return errors.New("--metrics-secure needs a cluster to review tokens: name it by --kubeconfig")
	}
	c := &certificate{dir: f.cert, node: o.NodeName}
	if _, err := c.get(nil); err != nil {
		return fmt.Errorf("--metrics-cert: %w", err)
	}
	o.MetricsTLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
	o.MetricsGuard = newGuard(client, o.Log).before
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// certificate is the server certificate of the metrics.
type certificate struct {
	dir, node string

	mu     sync.Mutex
	have   *tls.Certificate
	loaded time.Time
}

// certificateLooks is the time between reads of the directory.
const certificateLooks = time.Minute

// get returns the certificate of the directory, or without one a self-signed
// certificate. While the files cannot be read it returns the former one.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have != nil && (c.dir == "" || time.Since(c.loaded) < certificateLooks) {
		return c.have, nil
	}
	c.loaded = time.Now()
	var have tls.Certificate
	var err error
	if c.dir == "" {
		have, err = selfSigned(c.node)
	} else {
		have, err = tls.LoadX509KeyPair(filepath.Join(c.dir, "tls.crt"), filepath.Join(c.dir, "tls.key"))
	}
	if err == nil {
		c.have = &have
	}
	if c.have == nil {
		return nil, err
	}
	return c.have, nil
}

// selfSigned makes a certificate that clients cannot verify: it protects tokens from
// listeners, not from a man in the middle.
func selfSigned(node string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	const life = 10 * 365 * 24 * time.Hour
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rail-agent"}, DNSNames: []string{node},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
