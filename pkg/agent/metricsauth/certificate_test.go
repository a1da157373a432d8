package metricsauth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writePair writes a self-signed certificate and its key, and returns the
// certificate.
func writePair(t *testing.T, dir, node string) []byte {
	t.Helper()
	pair, err := selfSigned(node)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pair.Certificate[0]
}

// served returns the certificate that a client gets. If look is true, the directory must be read
// again before.
func served(t *testing.T, c *Certificate, look bool) []byte {
	t.Helper()
	if look {
		c.loaded = time.Now().Add(-certificateChecks)
	}
	pair, err := c.TLS().GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return pair.Certificate[0]
}

func TestCertificateThatWasReplacedIsServed(t *testing.T) {
	dir := t.TempDir()
	first := writePair(t, dir, "node1")
	c, err := NewCertificate(dir, "node1")
	if err != nil {
		t.Fatal(err)
	}
	second := writePair(t, dir, "node1")
	if !bytes.Equal(served(t, c, false), first) {
		t.Error("the directory is read for each request")
	}
	if !bytes.Equal(served(t, c, true), second) {
		t.Error("the new certificate is not served")
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(served(t, c, true), second) {
		t.Error("the certificate is lost with its file")
	}
}

func TestCertificateThatCannotBeReadIsAnError(t *testing.T) {
	if _, err := NewCertificate(t.TempDir(), "node1"); err == nil {
		t.Error("it is none")
	}
}

func TestSelfSignedCertificateNamesTheNodeAndStays(t *testing.T) {
	c, err := NewCertificate("", "node1")
	if err != nil {
		t.Fatal(err)
	}
	first := served(t, c, false)
	certificate, err := x509.ParseCertificate(first)
	if err != nil || certificate.VerifyHostname("node1") != nil {
		t.Errorf("%v, for %v", err, certificate.DNSNames)
	}
	if !bytes.Equal(served(t, c, true), first) {
		t.Error("it is made anew")
	}
}
