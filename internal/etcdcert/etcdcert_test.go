package etcdcert_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/holdfast-dev/holdfast/internal/etcdcert"
	"github.com/holdfast-dev/holdfast/test/pki"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ secret, ca, want string }{
		{"a/b", "c/d:e", "a/b c/d e"},
		{"a/b", "c/d", "a/b c/d ca-bundle.crt"},
		{"a/b", "", "a/b / ca-bundle.crt"},
		{"b", "", `"b" is not NAMESPACE/NAME`},
		{"a/b/c", "", `"a/b/c" is not NAMESPACE/NAME`},
		{"a/b", "d:e", `"d" is not NAMESPACE/NAME`},
		{"a/b", "c/d:", `"c/d:" names no key after the colon`},
	} {
		var got string
		if s, err := etcdcert.Parse(c.secret, c.ca, "dir"); err != nil {
			got = err.Error()
		} else {
			got = s.Secret.String() + " " + s.CA.String() + " " + s.CAKey
		}
		if got != c.want {
			t.Errorf("%q, %q: %s, want %s", c.secret, c.ca, got, c.want)
		}
	}
}

// TestFetch: files that etcd's client can use, written anew when they differ, and left alone when what the
// objects hold is no good.
func TestFetch(t *testing.T) {
	ctx := t.Context()
	issue := func() map[string][]byte {
		ca, err := pki.NewAuthority("test")
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		cert, key, err := ca.IssueFiles(dir, "tls", pki.Leaf{CommonName: "etcd-client"})
		if err != nil {
			t.Fatal(err)
		}
		return map[string][]byte{"ca.crt": ca.CertPEM(), corev1.TLSCertKey: read(t, cert), corev1.TLSPrivateKeyKey: read(t, key)}
	}
	first, second := issue(), issue()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd", Name: "etcd-client"}, Data: first}
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd", Name: "etcd-ca-bundle"}, Data: map[string]string{"ca-bundle.crt": string(second["ca.crt"])}}
	api := fake.NewClientset(secret, bundle).CoreV1()

	for ca, want := range map[string][]byte{"": first["ca.crt"], "openshift-etcd/etcd-ca-bundle": second["ca.crt"]} {
		s, err := etcdcert.Parse("openshift-etcd/etcd-client", ca, filepath.Join(t.TempDir(), "new"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} {
			if changed, err := s.Fetch(ctx, api); err != nil || changed != want {
				t.Errorf("CA from %q: changed is %t, want %t: %v", ca, changed, want, err)
			}
		}
		if diff := cmp.Diff(string(want), string(read(t, s.CAFile()))); diff != "" {
			t.Error(diff)
		}
		if _, err := tls.LoadX509KeyPair(s.PairFile(), s.PairFile()); err != nil {
			t.Error(err)
		}
	}

	s, err := etcdcert.Parse("openshift-etcd/etcd-client", "", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fetch(ctx, api); err != nil {
		t.Fatal(err)
	}
	before := string(read(t, s.PairFile()))
	set := func(data map[string][]byte) {
		secret := secret.DeepCopy()
		secret.Data = data
		if _, err := api.Secrets("openshift-etcd").Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set(map[string][]byte{"ca.crt": first["ca.crt"], corev1.TLSCertKey: first[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: second[corev1.TLSPrivateKeyKey]})
	if _, err := s.Fetch(ctx, api); err == nil || !strings.Contains(err.Error(), "Secret openshift-etcd/etcd-client") {
		t.Errorf("a key of another certificate: %v", err)
	}
	set(map[string][]byte{corev1.TLSCertKey: second[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: second[corev1.TLSPrivateKeyKey]})
	if _, err := s.Fetch(ctx, api); err == nil || !strings.Contains(err.Error(), "ca.crt holds no PEM certificate") {
		t.Errorf("without a CA: %v", err)
	}
	if diff := cmp.Diff(before, string(read(t, s.PairFile()))); diff != "" {
		t.Errorf("what was good is gone: %s", diff)
	}
	set(second)
	if changed, err := s.Fetch(ctx, api); err != nil || !changed {
		t.Errorf("renewed: changed is %t: %v", changed, err)
	}
	if string(read(t, s.PairFile())) == before {
		t.Error("the renewed certificate was not written")
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
