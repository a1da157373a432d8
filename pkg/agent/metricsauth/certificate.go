package metricsauth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"path/filepath"
	"sync"
	"time"
)

// certificateChecks is the time between two reads of the directory.
const certificateChecks = time.Minute

// Certificate is the server certificate of the metrics.
type Certificate struct {
	dir, node string

	mu     sync.Mutex
	have   *tls.Certificate
	loaded time.Time
}

// NewCertificate returns the certificate in the files tls.crt and tls.key of dir. If dir is "", it
// makes a self-signed certificate for the node.
func NewCertificate(dir, node string) (*Certificate, error) {
	c := &Certificate{dir: dir, node: node}
	_, err := c.get(nil)
	return c, err
}

// TLS returns the configuration of a server with this certificate.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

// get returns the certificate. From time to time it reads the directory again. If the files cannot
// be read, it returns the former certificate.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have != nil && (c.dir == "" || time.Since(c.loaded) < certificateChecks) {
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

// selfSigned makes a certificate that clients cannot verify. It protects tokens from people who
// only listen, but not from a man in the middle.
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
