package sandbox

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/process"
)

// Server is the API server's URL.
func (s *Sandbox) Server() string { return "https://" + s.apiserverAddress }

// doors are how many endpoints of etcd there are.
const doors = 3

// openDoors opens what the API server and the tests know as etcd's endpoints. A real API server is given the voters as they are published, and is
// started again when they change. This one is not: each door leads to one of the voters as they are, and to the next one when a
// connection ends. It never leads to a learner, which an API server before Kubernetes 1.31 would go on asking.
func (s *Sandbox) openDoors() error {
	for i := range doors {
		listener, err := (&net.ListenConfig{}).Listen(s.background, "tcp", "127.0.0.1:0") // an address in each member's certificate
		if err != nil {
			return fmt.Errorf("an endpoint of etcd for kube-apiserver: %w", err)
		}
		s.closers = append(s.closers, listener.Close)
		s.doors = append(s.doors, "https://"+listener.Addr().String())
		var turn atomic.Int64
		turn.Store(int64(i))
		go lead(s.background, listener, s.cloud.log.With("part", "door"), func() (address string, ok bool) {
			voters := s.cloud.members.client.Endpoints()
			if len(voters) == 0 {
				return "", false
			}
			return strings.CutPrefix(voters[int(turn.Add(1))%len(voters)], "https://")
		})
	}
	return nil
}

// apiserverSpec runs kube-apiserver on the ring that it helps to guard.
func (s *Sandbox) apiserverSpec() (process.Spec, error) {
	return s.apiserverSpecOf("kube-apiserver", s.apiserverAddress, s.Endpoints()...)
}

// apiserverSpecOf is that of one API server, of several that have certificate, keys and audit log in common.
func (s *Sandbox) apiserverSpecOf(name, address string, etcd ...string) (process.Spec, error) {
	path, err := assets.Path("kube-apiserver")
	if err != nil {
		return process.Spec{}, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return process.Spec{}, err
	}
	more, err := s.auditFlags()
	if err != nil {
		return process.Spec{}, err
	}
	env := process.Roomy()
	if s.options.ForInstall {
		more = append(more, "--kubelet-certificate-authority="+filepath.Join(s.pki(), "ca.crt"), "--kubelet-preferred-address-types=ExternalIP",
			"--kubelet-client-certificate="+s.kubeletCert, "--kubelet-client-key="+s.kubeletKey)
		env = append(env, "HTTPS_PROXY="+s.kubeletProxy, "NO_PROXY=.svc") // Go asks no proxy for loopback
	}
	return process.Spec{
		Name: name, Path: path, Log: s.logFile(name), Env: env,
		Noise: "addrConn.createTransport failed", // where a voter is down
		Args: append([]string{
			"--etcd-servers=" + strings.Join(etcd, ","),
			"--etcd-cafile=" + s.EtcdFiles.CA, "--etcd-certfile=" + s.EtcdFiles.Cert, "--etcd-keyfile=" + s.EtcdFiles.Key,
			"--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
			"--tls-cert-file=" + s.apiserverCert, "--tls-private-key-file=" + s.apiserverKey,
			"--token-auth-file=" + s.tokenFile(),
			"--service-account-issuer=" + s.Server(),
			"--service-account-key-file=" + s.apiserverCert, "--service-account-signing-key-file=" + s.apiserverKey,
			"--authorization-mode=RBAC",
			"--service-cluster-ip-range=" + s.serviceRange(),
			// There is no network beyond loopback to publish the server in: Endpoints may not hold such addresses,
			// so no API server has a lease there either. Nothing makes default service accounts.
			"--endpoint-reconciler-type=none",
			"--allow-privileged", // as every cluster: the pods of a control plane are
			"--disable-admission-plugins=ServiceAccount",
		}, more...),
	}, nil
}

// serviceRange is where Services get their addresses: on loopback where something leads from there.
func (s *Sandbox) serviceRange() string {
	if s.options.ForInstall {
		return netip.PrefixFrom(s.block.Addr(serviceBase), 27).String()
	}
	return "10.96.0.0/16"
}

// The block's addresses from podBase on are for pods whose containers run, and the last 32 for Services.
const (
	podBase     = 124
	serviceBase = 224
)

// APIAuditLog is the API server's own audit log, a JSON Event per line: what Holdfast's service account asked for, where Holdfast is
// installed by its manifests; what was asked to be written to Machines and what was stored, with AuditMachines.
func (s *Sandbox) APIAuditLog() string { return s.logFile("kube-apiserver-audit") }

// auditFlags have the API server write that log.
func (s *Sandbox) auditFlags() ([]string, error) {
	rules := ""
	if s.options.ForInstall {
		rules = fmt.Sprintf("{level: Metadata, users: [%q]}, ", Holdfast)
	}
	if s.options.AuditMachines {
		rules += "{level: RequestResponse, verbs: [create, update, patch, delete], resources: [{group: machine.openshift.io, resources: [machines, machines/status]}]}, "
	}
	if rules == "" {
		return nil, nil
	}
	policy := filepath.Join(s.Dir, "kubeconfig", "kube-apiserver.audit")
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [" + rules + "{level: None}]\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("kube-apiserver's audit policy: %w", err)
	}
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + s.APIAuditLog(), "--audit-log-maxsize=1000"}, nil
}

// waitAPIServer waits until the API server is ready.
func (s *Sandbox) waitAPIServer(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.Config(Admin))
	if err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	return s.poll(ctx, func(ctx context.Context) error { return probeHTTP(ctx, client, 2*time.Second, s.Server()+"/readyz") })
}

func (s *Sandbox) machineAPISpec() (process.Spec, error) {
	path, err := assets.Path("machine-api")
	if err != nil {
		return process.Spec{}, err
	}
	certs := filepath.Join(s.pki(), "machine-api-webhook")
	if err := os.MkdirAll(certs, 0o700); err != nil {
		return process.Spec{}, fmt.Errorf("machine-api's certificate: %w", err)
	}
	if _, err := s.ca.WriteCert(certs); err != nil {
		return process.Spec{}, err
	}
	if _, _, err := s.ca.IssueFiles(certs, "tls", pki.Leaf{CommonName: "machine-api", Hosts: []string{s.machineAPIHost}}); err != nil {
		return process.Spec{}, err
	}
	return process.Spec{
		Name: "machine-api", Path: path, Log: s.logFile("machine-api"),
		Args: []string{
			"--kubeconfig=" + s.Kubeconfig(MachineAPI),
			"--cloud-socket=" + s.cloudSocket(),
			"--webhook-host=" + s.machineAPIHost, "--webhook-port=" + strconv.Itoa(s.machineAPIPort),
			"--webhook-cert-dir=" + certs,
		},
	}, nil
}

func joinPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
