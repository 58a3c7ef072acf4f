package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"

	"github.com/holdfast-dev/holdfast/test/pki"
)

func TestIssuedLeafServesAndDials(t *testing.T) {
	ca, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile, err := ca.IssueFiles(dir, "host", pki.Leaf{
		CommonName: "system:admin", Hosts: []string{"127.1.2.3", "etcd.local"},
	})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.1.2.3", "etcd.local"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: ca.Pool(), DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}); err != nil {
			t.Errorf("serving %s: %v", host, err)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("dialing: %v", err)
	}
	info, err := os.Stat(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the key is readable by others: %v", info.Mode())
	}
}
