// Package hostfiles keeps on a control-plane host the files that etcd's static pod starts from. A static pod can use neither
// ConfigMaps nor Secrets, and etcd has to start while there is no API server: so what it needs is on the host.
//
//	membership.env     what etcd starts with: the host's entry in ConfigMap etcd-membership
//	peer.pem           etcd's certificate towards its peers, and its key
//	peer-ca.crt        the CA of peers' certificates
//	serving.pem        etcd's certificate towards clients, and its key; etcd's own client certificate besides
//	serving-ca.crt     the CA of clients' certificates
//
// The certificates are in Secrets etcd-peer-NODE and etcd-serving-NODE, as cert-manager writes them. Certificate and key are one
// file, so that no reader gets an old certificate with a new key.
package hostfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
)

// Label names, on a Secret, the Node that its certificate is for.
const Label = "holdfast.dev/etcd-host"

// Membership is the file of the environment.
const Membership = "membership.env"

// Kinds are the certificates of a host: what they are called in the names of Secrets and files.
func Kinds() []string { return []string{"peer", "serving"} }

// SecretName is the Secret with a certificate of that kind for a Node.
func SecretName(kind, node string) string { return "etcd-" + kind + "-" + node }

// Render makes a Node's files, by name, of what the cluster has: the data of ConfigMap etcd-membership, and Secrets by their
// names. What is missing or cannot be right has no file here, so that the file on the host stays as it is; problems says why. here are
// the files that are on the host: etcd reads its CA only when it starts, so a certificate of another CA would cut off a member that runs.
func Render(node string, membership map[string]string, secrets map[string]*corev1.Secret, here map[string][]byte) (files map[string][]byte, problems []error) {
	files = map[string][]byte{}
	text, ok := membership[node]
	if !ok {
		problems = append(problems, fmt.Errorf("ConfigMap %s says nothing about Node %s", hostenv.Name, node))
	} else if _, err := hostenv.Parse(text); err != nil {
		problems = append(problems, fmt.Errorf("ConfigMap %s, Node %s: %w", hostenv.Name, node, err))
	} else {
		files[Membership] = []byte(text)
	}
	for _, kind := range Kinds() {
		name := SecretName(kind, node)
		secret, ok := secrets[name]
		if !ok {
			problems = append(problems, fmt.Errorf("there is no Secret %s with label %s=%s", name, Label, node))
			continue
		}
		if err := addCertificate(files, kind, secret, here[kind+"-ca.crt"]); err != nil {
			problems = append(problems, fmt.Errorf("Secret %s: %w", name, err))
		}
	}
	return files, problems
}

// addCertificate adds the files of a certificate of that kind, as far as they can be right beside the CAs that this host trusts.
func addCertificate(files map[string][]byte, kind string, secret *corev1.Secret, trusted []byte) error {
	pair, err := Pair(secret)
	if err != nil {
		return err
	}
	ca := secret.Data["ca.crt"]
	now, before := parse(ca), parse(trusted)
	if len(now) == 0 {
		return errors.New("ca.crt holds no certificate")
	}
	if len(before) > 0 && !signed(secret.Data[corev1.TLSCertKey], before) {
		return fmt.Errorf("its certificate is not of a CA in %s-ca.crt on this host, by which etcd's members trust each other; let every host trust both CAs first", kind)
	}
	files[kind+".pem"] = pair
	if !holdsKeys(now, before) {
		return fmt.Errorf("%s-ca.crt on this host holds a CA that ca.crt does not; remove it by hand once it is not needed", kind)
	}
	files[kind+"-ca.crt"] = ca
	return nil
}

// parse are the certificates in a PEM text, those that can be read.
func parse(text []byte) (out []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
	return out
}

// signed reports whether a certificate, with its chain, is of one of the CAs.
func signed(chain []byte, cas []*x509.Certificate) bool {
	roots, between, certs := x509.NewCertPool(), x509.NewCertPool(), parse(chain)
	if len(certs) == 0 {
		return false
	}
	for _, ca := range cas {
		roots.AddCert(ca)
	}
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	_, err := certs[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: certs[0].NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}

// holdsKeys reports whether each of the CAs before is among these, by its key: a CA that is renewed keeps it.
func holdsKeys(now, before []*x509.Certificate) bool {
	keys := sets.New[string]()
	for _, c := range now {
		keys.Insert(string(c.RawSubjectPublicKeyInfo))
	}
	return !slices.ContainsFunc(before, func(c *x509.Certificate) bool { return !keys.Has(string(c.RawSubjectPublicKeyInfo)) })
}

// Read are the files of CAs that are in the directory. One that is not there yet is none.
func Read(dir string) (map[string][]byte, error) {
	here := map[string][]byte{}
	for _, kind := range Kinds() {
		name := kind + "-ca.crt"
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		here[name] = text
	}
	return here, nil
}

// Pair is a Secret's certificate with its key, in PEM.
func Pair(secret *corev1.Secret) ([]byte, error) {
	cert, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	return slices.Concat(bytes.TrimSpace(key), []byte("\n"), bytes.TrimSpace(cert), []byte("\n")), nil
}

// Write brings the directory's files to what they shall be, and says which ones it wrote. Only the owner reads
// them. Other files stay.
func Write(dir string, files map[string][]byte) (written []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, files[name]) {
			continue
		}
		if err := Replace(path, 0o600, bytes.NewReader(files[name])); err != nil {
			return written, err
		}
		written = append(written, name)
	}
	return written, nil
}

// Replace makes the file, or puts another in its place. No reader sees half a file, not after a power cut either.
func Replace(path string, mode fs.FileMode, content io.Reader) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it is gone if it was renamed
	_, err = io.Copy(f, content)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
