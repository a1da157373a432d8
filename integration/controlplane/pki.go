package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // of cert
}

// lifetime is that of every certificate. They begin an hour ago, in case the
// clock is set back while a test runs.
const lifetime = 30 * 24 * time.Hour

func newAuthority() (*authority, error) {
	a := &authority{}
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "rail-cni test CA"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, key, err := a.sign(tmpl)
	if err != nil {
		return nil, err
	}
	a.key = key
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// sign makes a key and its certificate; without a certificate of its own, a
// self-signed one.
func (a *authority) sign(tmpl *x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	if tmpl.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	tmpl.NotBefore = time.Now().Add(-time.Hour)
	tmpl.NotAfter = tmpl.NotBefore.Add(lifetime)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err = x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), signer)
	return der, key, err
}

// issue returns a certificate and its key as PEM.
func (a *authority) issue(tmpl *x509.Certificate) (cert, key []byte, err error) {
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	der, private, err := a.sign(tmpl)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", tmpl.Subject.CommonName, err)
	}
	if key, err = keyPEM(private); err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, nil
}

// client returns a client certificate for kube-apiserver of a user with these
// groups.
func (a *authority) client(user string, groups ...string) (cert, key []byte, err error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server returns the certificate of a server with these names and addresses; ""
// is none.
func (a *authority) server(name string, hosts ...string) (cert, key []byte, err error) {
	tmpl := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else if host != "" {
			tmpl.DNSNames = append(tmpl.DNSNames, host)
		}
	}
	return a.issue(tmpl)
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// writeFiles writes secrets for this process and its children.
func writeFiles(files map[string][]byte) error {
	for path, data := range files {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
