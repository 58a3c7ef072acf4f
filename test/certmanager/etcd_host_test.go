package certmanager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/hostfiles"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/loopback"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

// filesAccount is the service account of deploy/examples/etcd-host.
const filesAccount = "system:serviceaccount:openshift-etcd:etcd-host-files"

const clientSecret = "etcd-hosts-client"

// etcdHosts makes an etcd of three by deploy/examples/etcd-host: cert-manager issues what its manifests ask for, holdfast host-files
// keeps it on the hosts with the rights that it has there, and etcd starts as in the static pod. Then all certificates are renewed
// while somebody writes.
func (f *fixture) etcdHosts() {
	f.t.Helper()
	root, err := assets.Root()
	f.Expect(err).NotTo(gomega.HaveOccurred())
	example := filepath.Join(root, "deploy", "examples", "etcd-host")
	if err := f.admin.Create(f.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostenv.Namespace}}); client.IgnoreAlreadyExists(err) != nil {
		f.t.Fatal(err)
	}
	// Secret etcd-client is the one of the sandbox's own etcd here.
	manifests := strings.ReplaceAll(f.kubectl(nil, "kustomize", example), "etcd-client", clientSecret)
	f.kubectl([]byte(manifests), "apply", "-f", "-")
	f.kubectl(nil, "apply", "--dry-run=server", "-f", filepath.Join(example, "etcd.yaml"))

	block, err := loopback.Claim()
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.t.Cleanup(func() { _ = block.Close() })
	ports, err := block.FreePorts(3)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	pod, err := sandbox.StaticPod()
	f.Expect(err).NotTo(gomega.HaveOccurred())
	template, err := os.ReadFile(filepath.Join(example, "certificates.yaml"))
	f.Expect(err).NotTo(gomega.HaveOccurred())

	var hosts []sandbox.EtcdHost
	founders := hostenv.Environment{State: hostenv.StateNew, InitialCluster: hostenv.Peers{}}
	for i := range 3 {
		dir := f.t.TempDir()
		h := sandbox.EtcdHost{
			Node: fmt.Sprintf("etcd-%d", i), Address: block.Addr(i + 1).String(), Ports: ring.Ports{Client: ports[0], Peer: ports[1]},
			Loopback:      netip.AddrPortFrom(block.Addr(i+101), uint16(ports[2])).String(),
			Clients:       netip.AddrPortFrom(block.Addr(i+101), uint16(ports[0])).String(),
			Configuration: filepath.Join(dir, "configuration"), Data: dir,
		}
		hosts = append(hosts, h)
		founders.InitialCluster[h.Node] = []string{h.Ports.PeerURL(h.Address)}
		f.kubectl([]byte(strings.NewReplacer("NODE", h.Node, "ADDRESS", h.Address).Replace(string(template))), "apply", "-f", "-")
		f.hostFiles(h)
	}
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: hostenv.Namespace, Name: hostenv.Name}, Data: map[string]string{}}
	for _, h := range hosts {
		published.Data[h.Node] = founders.Text()
	}
	f.Expect(f.admin.Create(f.t.Context(), published)).To(gomega.Succeed())
	members := make([]*process.Process, len(hosts))
	for i, h := range hosts {
		members[i] = f.startStaticPod(h, pod)
	}
	etcd := f.etcdClient(hosts)
	for i := range hosts { // each opens its port when it has found the others
		one := f.etcdClient(hosts[i : i+1])
		f.Eventually(func() error {
			ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
			defer cancel()
			_, err := one.Get(ctx, "k")
			return err
		}).Should(gomega.Succeed())
	}
	f.publish(etcd, hosts, published)
	f.metrics(hosts[0])

	w := writer.New(etcd)
	writing, stop := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(writing) }()
	f.Eventually(func() int { return w.Stats().Acked }).Should(gomega.BeNumerically(">", 0))
	for _, h := range hosts {
		for kind, url := range map[string]string{"peer": h.Ports.PeerURL(h.Address), "serving": h.Ports.ClientURL(h.Address)} {
			name := hostfiles.SecretName(kind, h.Node)
			before := f.served(h, url)
			f.renew(hostenv.Namespace, name)
			f.Eventually(func() string { return f.served(h, url) }).Should(gomega.And(
				gomega.Not(gomega.Equal(before)), gomega.Equal(f.serialOf(name))), name)
		}
	}
	stop()
	<-done
	f.Expect(w.Stats().Failed).To(gomega.BeZero(), "%v", w.Stats().Last)
	f.t.Logf("%d writes, longest %v", w.Stats().Acked, w.Stats().Longest)

	// A member that starts again does so by what is published now, and reaches its peers with the renewed certificates.
	f.Expect(members[2].Stop(5 * time.Second)).To(gomega.Succeed())
	f.startStaticPod(hosts[2], pod)
	alone := f.etcdClient(hosts[2:])
	f.Eventually(func() error {
		ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
		defer cancel()
		_, err := alone.Get(ctx, "k")
		return err
	}).Should(gomega.Succeed())
	lost, err := w.Lost(f.t.Context())
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.Expect(lost).To(gomega.BeZero())
}

// publish does Holdfast's part in full mode, and waits until the hosts have it.
func (f *fixture) publish(etcd *clientv3.Client, hosts []sandbox.EtcdHost, published *corev1.ConfigMap) {
	f.t.Helper()
	list, err := etcd.MemberList(f.t.Context())
	f.Expect(err).NotTo(gomega.HaveOccurred())
	s := &quorum.Snapshot{Ring: quorum.Ring{Known: true}}
	for _, m := range list.Members {
		s.Ring.Members = append(s.Ring.Members, quorum.Member{ID: quorum.MemberID(m.ID), Name: m.Name, PeerURLs: m.PeerURLs})
	}
	for _, h := range hosts {
		s.Nodes = append(s.Nodes, quorum.Node{Name: h.Node, Addresses: []netip.Addr{netip.MustParseAddr(h.Address)}})
	}
	environments, err := hostenv.Environments(quorum.NewJoin(s))
	f.Expect(err).NotTo(gomega.HaveOccurred())
	for node, e := range environments {
		published.Data[node] = e.Text()
	}
	f.Expect(f.admin.Update(f.t.Context(), published)).To(gomega.Succeed())
	for _, h := range hosts {
		f.Eventually(func() (string, error) {
			text, err := os.ReadFile(filepath.Join(h.Configuration, hostfiles.Membership))
			return string(text), err
		}).Should(gomega.Equal(published.Data[h.Node]), h.Node)
	}
}

// hostFiles runs holdfast host-files for a host as its DaemonSet's pod would, until the test is over.
func (f *fixture) hostFiles(h sandbox.EtcdHost) {
	f.t.Helper()
	config, err := clientcmd.LoadFromFile(f.sandbox.Kubeconfig(sandbox.Admin))
	f.Expect(err).NotTo(gomega.HaveOccurred())
	for _, user := range config.AuthInfos {
		user.Impersonate = filesAccount
	}
	kubeconfig := filepath.Join(h.Data, "kubeconfig")
	f.Expect(clientcmd.WriteToFile(*config, kubeconfig)).To(gomega.Succeed())
	binary, err := assets.Path("holdfast")
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.process(process.Spec{
		Name: "host-files of " + h.Node, Path: binary, Log: filepath.Join(f.sandbox.Logs, "host-files-"+h.Node+".log"),
		Args: []string{"host-files", "--node=" + h.Node, "--directory=" + h.Configuration, "--kubeconfig=" + kubeconfig},
	})
}

func (f *fixture) process(spec process.Spec) *process.Process {
	f.t.Helper()
	p, err := process.Start(spec)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.t.Cleanup(func() { _ = p.Stop(5 * time.Second) })
	return p
}

// startStaticPod runs the init containers to their ends, one after the other, and then etcd until the test is over.
func (f *fixture) startStaticPod(h sandbox.EtcdHost, pod *corev1.Pod) *process.Process {
	f.t.Helper()
	for i := range pod.Spec.InitContainers {
		run := f.container(h, &pod.Spec.InitContainers[i])
		f.Eventually(run.Done()).Should(gomega.BeClosed())
		code, exited := run.ExitCode()
		f.Expect(exited && code == 0).To(gomega.BeTrue(), "%v", run.Err())
	}
	return f.container(h, &pod.Spec.Containers[0], ring.Unsynced)
}

func (f *fixture) container(h sandbox.EtcdHost, c *corev1.Container, more ...string) *process.Process {
	f.t.Helper()
	spec, err := h.Command(c, more...)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	spec.Log = filepath.Join(f.sandbox.Logs, c.Name+"-"+h.Node+".log")
	return f.process(spec)
}

// etcdClient is a client with the certificate that the example has issued for Holdfast.
func (f *fixture) etcdClient(hosts []sandbox.EtcdHost) *clientv3.Client {
	f.t.Helper()
	secret := f.secretIn(hostenv.Namespace, clientSecret)
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	f.Expect(err).NotTo(gomega.HaveOccurred())
	roots := x509.NewCertPool()
	f.Expect(roots.AppendCertsFromPEM(secret.Data["ca.crt"])).To(gomega.BeTrue())
	config := clientv3.Config{
		TLS:    &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		Logger: zap.NewNop(), DialTimeout: 5 * time.Second,
	}
	for _, h := range hosts {
		config.Endpoints = append(config.Endpoints, h.Ports.ClientURL(h.Address))
	}
	etcd, err := clientv3.New(config)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.t.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

// metrics reads a member's metrics as docs/full-mode.md says who may: on the host anybody, and at the client URL only who has a certificate of
// etcd's CA for clients.
func (f *fixture) metrics(h sandbox.EtcdHost) {
	f.t.Helper()
	ca, err := os.ReadFile(filepath.Join(h.Configuration, "serving-ca.crt"))
	f.Expect(err).NotTo(gomega.HaveOccurred())
	roots := x509.NewCertPool()
	f.Expect(roots.AppendCertsFromPEM(ca)).To(gomega.BeTrue(), "a CA is in the host's file")
	pair, err := tls.LoadX509KeyPair(filepath.Join(h.Configuration, "serving.pem"), filepath.Join(h.Configuration, "serving.pem"))
	f.Expect(err).NotTo(gomega.HaveOccurred())
	read := func(url string, certificates ...tls.Certificate) (string, error) {
		c := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12},
		}}
		request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			return "", err
		}
		response, err := c.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		page, err := io.ReadAll(response.Body)
		return string(page), err
	}
	const metric = "\netcd_server_is_leader "
	client := h.Ports.ClientURL(h.Address) + "/metrics"
	f.Expect(read("http://"+h.Loopback+"/metrics")).To(gomega.ContainSubstring(metric), "on the host anybody reads etcd's metrics")
	f.Expect(read(client, pair)).To(gomega.ContainSubstring(metric), "a client with a certificate reads etcd's metrics, and trusts the one for clients")
	_, err = read(client)
	f.Expect(err).To(gomega.HaveOccurred(), "who has no certificate reads no metrics at the client URL")
}

// served is the serial number of the certificate that a host's etcd serves at a URL, to a client whose own is that host's.
func (f *fixture) served(h sandbox.EtcdHost, url string) string {
	var serial string
	pair, err := tls.LoadX509KeyPair(filepath.Join(h.Configuration, "peer.pem"), filepath.Join(h.Configuration, "peer.pem"))
	if err != nil {
		return err.Error()
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // the certificate itself is looked at
		VerifyConnection: func(s tls.ConnectionState) error {
			serial = s.PeerCertificates[0].SerialNumber.String()
			return nil
		},
	}}).DialContext(f.t.Context(), "tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		return err.Error()
	}
	_ = conn.Close()
	return serial
}

func (f *fixture) serialOf(secret string) string {
	f.t.Helper()
	return f.certificate(f.secretIn(hostenv.Namespace, secret).Data[corev1.TLSCertKey]).SerialNumber.String()
}

func (f *fixture) secretIn(namespace, name string) *corev1.Secret {
	f.t.Helper()
	secret := &corev1.Secret{}
	f.Eventually(func() error {
		return f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, secret)
	}).Should(gomega.Succeed(), name)
	return secret
}

func (f *fixture) certificateIn(namespace, name string) *cmapi.Certificate {
	f.t.Helper()
	c := &cmapi.Certificate{}
	f.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, c)).To(gomega.Succeed())
	return c
}
