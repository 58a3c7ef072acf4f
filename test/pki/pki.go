// Package pki makes the certificates of a test or a sandbox at run time: one
// authority and leaves that serve and dial.
package pki

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
	"path/filepath"
	"time"
)

// validity is longer than any sandbox stands; the past hour forgives a clock that is set back.
const validity = 7 * 24 * time.Hour

// Authority is a self-signed certificate authority, ECDSA P-256, that lives in memory.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority of that common name.
func NewAuthority(commonName string) (*Authority, error) {
	template, key, err := prepare(pkix.Name{CommonName: commonName})
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", commonName, err)
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", commonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", commonName, err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// CertPEM is the authority's certificate.
func (a *Authority) CertPEM() []byte { return certPEM(a.cert.Raw) }

// Endorse is a certificate of another authority's name and key, signed by this one: who trusts this one trusts what the other
// issues, if it is shown this certificate beside.
func (a *Authority) Endorse(other *Authority) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, other.cert, a.cert, other.key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("endorse authority %s: %w", other.cert.Subject.CommonName, err)
	}
	return certPEM(der), nil
}

// Pool trusts this authority and nothing else.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Leaf is who a certificate is for. To Kubernetes the common name is the user.
type Leaf struct {
	CommonName string
	// Hosts are the DNS names and IP addresses that it serves; none for a mere client.
	Hosts []string
}

// Issue makes a key and a certificate, good for serving and for dialing, as PEM.
func (a *Authority) Issue(leaf Leaf) (cert, key []byte, err error) {
	template, private, err := prepare(pkix.Name{CommonName: leaf.CommonName})
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", leaf.CommonName, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range leaf.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", leaf.CommonName, err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("key of %s: %w", leaf.CommonName, err)
	}
	return certPEM(der), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}

// WriteCert writes the authority's certificate to dir/ca.crt.
func (a *Authority) WriteCert(dir string) (path string, err error) {
	path = filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(path, a.CertPEM(), 0o600); err != nil {
		return "", fmt.Errorf("the authority's certificate: %w", err)
	}
	return path, nil
}

// IssueFiles issues to dir/name.crt and dir/name.key.
func (a *Authority) IssueFiles(dir, name string, leaf Leaf) (certFile, keyFile string, err error) {
	cert, key, err := a.Issue(leaf)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return "", "", fmt.Errorf("certificate of %s: %w", leaf.CommonName, err)
	}
	if err := os.WriteFile(keyFile, key, 0o600); err != nil {
		return "", "", fmt.Errorf("key of %s: %w", leaf.CommonName, err)
	}
	return certFile, keyFile, nil
}

func prepare(subject pkix.Name) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity),
	}, key, nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
