package hostfiles

import (
	"crypto/tls"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/test/pki"
)

const environment = "ETCD_INITIAL_CLUSTER=m0=https://127.0.0.1:2380\nETCD_INITIAL_CLUSTER_STATE=existing\nETCD_MEMBER_IDS=a1=https://127.0.0.1:2380\n"

func secret(t *testing.T) *corev1.Secret {
	t.Helper()
	ca, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "m0", Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{Data: map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca.CertPEM()}}
}

// TestRender is what becomes a file, and what leaves the file on the host as it is.
func TestRender(t *testing.T) {
	g := NewWithT(t)
	peer, serving := secret(t), secret(t)
	secrets := map[string]*corev1.Secret{"etcd-peer-m0": peer, "etcd-serving-m0": serving}
	files, problems := Render("m0", map[string]string{"m0": environment}, secrets, nil)
	g.Expect(problems).To(BeEmpty())
	g.Expect(files).To(HaveLen(5))
	g.Expect(string(files["membership.env"])).To(Equal(environment))
	g.Expect(files["peer-ca.crt"]).To(Equal(peer.Data["ca.crt"]))
	g.Expect(files["serving-ca.crt"]).To(Equal(serving.Data["ca.crt"]))
	for _, kind := range Kinds() {
		_, err := tls.X509KeyPair(files[kind+".pem"], files[kind+".pem"])
		g.Expect(err).NotTo(HaveOccurred(), "etcd reads certificate and key from the one file")
	}

	for name, c := range map[string]struct {
		spoil   func(membership map[string]string, secrets map[string]*corev1.Secret)
		missing []string
		says    string
	}{
		"another Node's entry": {func(m map[string]string, _ map[string]*corev1.Secret) { delete(m, "m0"); m["m1"] = environment },
			[]string{"membership.env"}, "says nothing about Node m0"},
		"an entry that is garbled": {func(m map[string]string, _ map[string]*corev1.Secret) { m["m0"] = "ETCD_INITIAL_CLUSTER_STATE=perhaps" },
			[]string{"membership.env"}, `Node m0: ETCD_INITIAL_CLUSTER_STATE is "perhaps"`},
		"no Secret": {func(_ map[string]string, s map[string]*corev1.Secret) { delete(s, "etcd-peer-m0") },
			[]string{"peer.pem", "peer-ca.crt"}, "there is no Secret etcd-peer-m0 with label holdfast.dev/etcd-host=m0"},
		"another certificate's key": {func(_ map[string]string, s map[string]*corev1.Secret) {
			s["etcd-serving-m0"] = serving.DeepCopy()
			s["etcd-serving-m0"].Data["tls.key"] = peer.Data["tls.key"]
		}, []string{"serving.pem", "serving-ca.crt"}, "Secret etcd-serving-m0: tls.crt and tls.key"},
		"no CA": {func(_ map[string]string, s map[string]*corev1.Secret) {
			s["etcd-serving-m0"] = serving.DeepCopy()
			delete(s["etcd-serving-m0"].Data, "ca.crt")
		}, []string{"serving.pem", "serving-ca.crt"}, "Secret etcd-serving-m0: ca.crt holds no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			membership, secrets := map[string]string{"m0": environment}, map[string]*corev1.Secret{"etcd-peer-m0": peer, "etcd-serving-m0": serving}
			c.spoil(membership, secrets)
			files, problems := Render("m0", membership, secrets, nil)
			g.Expect(files).To(HaveLen(5 - len(c.missing)))
			for _, name := range c.missing {
				g.Expect(files).NotTo(HaveKey(name))
			}
			g.Expect(problems).To(ConsistOf(MatchError(ContainSubstring(c.says))))
		})
	}
}

// TestCA: a certificate that the other members would not trust is not written, and no CA is taken off.
func TestCA(t *testing.T) {
	g := NewWithT(t)
	old, err := pki.NewAuthority("old")
	g.Expect(err).NotTo(HaveOccurred())
	fresh, err := pki.NewAuthority("fresh")
	g.Expect(err).NotTo(HaveOccurred())
	of := func(ca *pki.Authority) map[string]*corev1.Secret {
		cert, key, err := ca.Issue(pki.Leaf{CommonName: "m0", Hosts: []string{"127.0.0.1"}})
		g.Expect(err).NotTo(HaveOccurred())
		return map[string]*corev1.Secret{"etcd-peer-m0": {Data: map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca.CertPEM()}}}
	}
	written := func(secrets map[string]*corev1.Secret, here []byte) []string {
		files, _ := Render("m0", nil, secrets, map[string][]byte{"peer-ca.crt": here})
		return slices.Sorted(maps.Keys(files))
	}
	both := slices.Concat(old.CertPEM(), fresh.CertPEM())
	g.Expect(written(of(old), nil)).To(Equal([]string{"peer-ca.crt", "peer.pem"}), "the first ones")
	g.Expect(written(of(old), old.CertPEM())).To(Equal([]string{"peer-ca.crt", "peer.pem"}), "renewed")
	g.Expect(written(of(fresh), old.CertPEM())).To(BeEmpty(), "another CA, which nobody trusts yet")
	g.Expect(written(of(fresh), both)).To(Equal([]string{"peer.pem"}), "another CA, which is trusted; the old one stays, too")
	g.Expect(written(of(fresh), fresh.CertPEM())).To(Equal([]string{"peer-ca.crt", "peer.pem"}), "a person took the old one off")
}

// TestReplace: a file may be replaced by a copy of itself, and gets its mode whatever it had.
func TestReplace(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "a")
	g.Expect(os.WriteFile(path, []byte("1"), 0o600)).To(Succeed())
	itself, err := os.Open(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(Replace(path, 0o755, itself)).To(Succeed())
	g.Expect(itself.Close()).To(Succeed())
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("1"))
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o755))
}

func TestWrite(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "etcd")
	files := map[string][]byte{"b": []byte("2"), "a": []byte("1")}
	g.Expect(Write(dir, files)).To(Equal([]string{"a", "b"}))
	g.Expect(Write(dir, files)).To(BeEmpty(), "nothing has changed")
	files["b"] = []byte("3")
	delete(files, "a")
	g.Expect(Write(dir, files)).To(Equal([]string{"b"}))
	g.Expect(os.ReadFile(filepath.Join(dir, "a"))).To(BeEquivalentTo("1"), "what is not told stays")
	g.Expect(os.ReadFile(filepath.Join(dir, "b"))).To(BeEquivalentTo("3"))
	entries, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries).To(HaveLen(2), "nothing is left lying about")
	for _, e := range entries {
		info, err := e.Info()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o600), e.Name())
	}
}
