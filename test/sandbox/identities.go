package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/holdfast-dev/holdfast/test/pki"
)

// Identity is a Kubernetes user name that the sandbox made a client certificate
// and a kubeconfig for.
type Identity string

// The sandbox's people and service accounts.
const (
	Admin        Identity = "system:admin"
	Alice        Identity = "alice" // a person who is cluster-admin by RBAC
	GitOps       Identity = "system:serviceaccount:gitops:argocd-application-controller"
	MachineAPI   Identity = "system:serviceaccount:openshift-machine-api:machine-api-controllers"
	EtcdOperator Identity = "system:serviceaccount:openshift-etcd-operator:etcd-operator"
	Holdfast     Identity = "system:serviceaccount:holdfast-system:holdfast"
)

func identities() []Identity {
	return []Identity{Admin, Alice, GitOps, MachineAPI, EtcdOperator, SetOperatorIdentity, Holdfast, controllerManager, scheduler}
}

// Groups are those that Kubernetes gives a user of that name.
func (i Identity) Groups() []string {
	if i == Admin {
		return []string{"system:masters", "system:authenticated"}
	}
	if account, ok := strings.CutPrefix(string(i), "system:serviceaccount:"); ok {
		namespace, _, _ := strings.Cut(account, ":")
		return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
	}
	return []string{"system:authenticated"}
}

// File is the name of the identity's kubeconfig and certificates: the user name's last part.
func (i Identity) File() string { return string(i[strings.LastIndex(string(i), ":")+1:]) }

// Kubeconfig is the file with which kubectl acts as that identity.
func (s *Sandbox) Kubeconfig(as Identity) string {
	return filepath.Join(s.Dir, "kubeconfig", as.File())
}

// Config is a client configuration for that identity, without client-side throttling.
func (s *Sandbox) Config(as Identity) *rest.Config {
	cert := filepath.Join(s.pki(), as.File())
	return &rest.Config{
		Host: s.Server(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: s.ca.CertPEM(), CertFile: cert + ".crt", KeyFile: cert + ".key",
		},
		QPS: -1,
	}
}

// Impersonate is a client configuration of the administrator who acts as
// somebody the sandbox has no certificate for.
func (s *Sandbox) Impersonate(user string, groups ...string) *rest.Config {
	config := s.Config(Admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

func (s *Sandbox) pki() string { return filepath.Join(s.Dir, "pki") }

// writeIdentities makes all certificates and kubeconfigs.
func (s *Sandbox) writeIdentities() error {
	for _, identity := range identities() {
		certFile, keyFile, err := s.ca.IssueFiles(s.pki(), identity.File(), pki.Leaf{
			CommonName: string(identity), Organizations: identity.Groups(),
		})
		if err != nil {
			return err
		}
		cert, err := os.ReadFile(certFile)
		if err != nil {
			return err
		}
		key, err := os.ReadFile(keyFile)
		if err != nil {
			return err
		}
		const name = "sandbox"
		config := clientcmdapi.NewConfig()
		config.Clusters[name] = &clientcmdapi.Cluster{Server: s.Server(), CertificateAuthorityData: s.ca.CertPEM()}
		config.AuthInfos[identity.File()] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: identity.File(), Namespace: MachineNamespace}
		config.CurrentContext = name
		if err := clientcmd.WriteToFile(*config, s.Kubeconfig(identity)); err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", identity, err)
		}
	}
	return nil
}
