// Package etcdcert brings etcd's client certificate from another namespace to files: pods mount Secrets of
// their own namespace alone, and cluster-etcd-operator keeps the certificate in its operand's.
package etcdcert

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/hostfiles"
)

const (
	// every is how often the objects are read again.
	every = time.Minute
	bound = 10 * time.Second

	// caKey is the key of the CA in a ConfigMap that is named without one, and of the Secret's own.
	caKey       = "ca-bundle.crt"
	secretCAKey = "ca.crt"

	caFile   = "ca.crt"
	pairFile = "client.pem"
)

// Source is where the certificate is, and where its files go.
type Source struct {
	// Secret holds tls.crt and tls.key, and ca.crt where CA is empty.
	Secret types.NamespacedName
	// CA holds the CA of etcd's servers in CAKey; the zero value if the Secret does.
	CA    types.NamespacedName
	CAKey string
	// Dir is made if need be. Best in memory: a private key is written there.
	Dir string
}

// Parse reads secret, NAMESPACE/NAME, and ca, NAMESPACE/NAME[:KEY] or empty. Its errors are about these.
func Parse(secret, ca, dir string) (s *Source, err error) {
	if dir == "" {
		return nil, errors.New("there is no directory for etcd's certificate")
	}
	s = &Source{Dir: dir, CAKey: caKey}
	if s.Secret, err = name(secret); err != nil || ca == "" {
		return s, err
	}
	at, key, named := strings.Cut(ca, ":")
	if named {
		s.CAKey = key
	}
	if s.CAKey == "" {
		return nil, fmt.Errorf("%q names no key after the colon", ca)
	}
	s.CA, err = name(at)
	return s, err
}

func name(s string) (types.NamespacedName, error) {
	namespace, object, _ := strings.Cut(s, "/")
	if namespace == "" || object == "" || strings.Contains(object, "/") {
		return types.NamespacedName{}, fmt.Errorf("%q is not NAMESPACE/NAME", s)
	}
	return types.NamespacedName{Namespace: namespace, Name: object}, nil
}

// CAFile is the file of the CA of etcd's servers.
func (s *Source) CAFile() string { return filepath.Join(s.Dir, caFile) }

// PairFile is the file of the client certificate and its key, both: so that they are replaced together.
func (s *Source) PairFile() string { return filepath.Join(s.Dir, pairFile) }

// Fetch reads the objects and writes the files that differ, each in one step. What does not belong
// together, or is no certificate, is not written.
func (s *Source) Fetch(ctx context.Context, api corev1client.CoreV1Interface) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	secret, err := api.Secrets(s.Secret.Namespace).Get(ctx, s.Secret.Name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read Secret %s with etcd's client certificate: %w", s.Secret, err)
	}
	pair, err := hostfiles.Pair(secret)
	if err != nil {
		return false, fmt.Errorf("Secret %s: %w", s.Secret, err)
	}
	ca, from := secret.Data[secretCAKey], fmt.Sprintf("Secret %s, %s", s.Secret, secretCAKey)
	if s.CA.Name != "" {
		bundle, err := api.ConfigMaps(s.CA.Namespace).Get(ctx, s.CA.Name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("read ConfigMap %s with the CA of etcd's servers: %w", s.CA, err)
		}
		ca, from = []byte(bundle.Data[s.CAKey]), fmt.Sprintf("ConfigMap %s, %s", s.CA, s.CAKey)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return false, fmt.Errorf("%s holds no PEM certificate", from)
	}
	written, err := hostfiles.Write(s.Dir, map[string][]byte{caFile: ca, pairFile: pair})
	if err != nil {
		return false, fmt.Errorf("etcd's certificate: %w", err)
	}
	return len(written) > 0, nil
}

// Refresher fetches again and again. The manager runs it on every replica.
type Refresher struct {
	Source *Source
	API    corev1client.CoreV1Interface
	Log    logr.Logger
}

// Start fetches until the context ends. What was fetched last stays while that fails.
func (k *Refresher) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
		switch changed, err := k.Source.Fetch(ctx, k.API); {
		case err != nil && ctx.Err() == nil:
			k.Log.Error(err, "Keeping etcd's client certificate as it was read before")
		case changed:
			k.Log.Info("etcd's client certificate was renewed")
		}
	}
}
