package sandbox

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Identity is a Kubernetes user name that the sandbox made a token and a kubeconfig for. A service account has a token in a cluster, too;
// a client certificate would cost the API server its verification with each request.
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

// File is the name of the identity's kubeconfig: the user name's last part.
func (i Identity) File() string { return string(i[strings.LastIndex(string(i), ":")+1:]) }

// Kubeconfig is the file with which kubectl acts as that identity.
func (s *Sandbox) Kubeconfig(as Identity) string {
	return filepath.Join(s.Dir, "kubeconfig", as.File())
}

// Config is a client configuration for that identity, without client-side throttling.
func (s *Sandbox) Config(as Identity) *rest.Config {
	token, ok := s.tokens[as]
	if !ok {
		panic(fmt.Sprintf("the sandbox knows no %s, who would be anonymous", as))
	}
	return &rest.Config{Host: s.Server(), TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.CertPEM()}, BearerToken: token, QPS: -1}
}

// Impersonate is a client configuration of the administrator who acts as
// somebody the sandbox has no token for.
func (s *Sandbox) Impersonate(user string, groups ...string) *rest.Config {
	config := s.Config(Admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

func (s *Sandbox) pki() string { return filepath.Join(s.Dir, "pki") }

// tokenFile has the API server know the identities: a line for each, with its token, name, UID and groups.
func (s *Sandbox) tokenFile() string { return filepath.Join(s.pki(), "tokens.csv") }

// writeIdentities makes all tokens and kubeconfigs.
func (s *Sandbox) writeIdentities() error {
	s.tokens = map[Identity]string{}
	var known bytes.Buffer
	table := csv.NewWriter(&known)
	for _, identity := range identities() {
		token := rand.Text()
		s.tokens[identity] = token
		if err := table.Write([]string{token, string(identity), identity.File(), strings.Join(identity.Groups(), ",")}); err != nil {
			return fmt.Errorf("token of %s: %w", identity, err)
		}
		if err := writeKubeconfig(s.Kubeconfig(identity), s.Server(), s.ca.CertPEM(), identity.File(), token, MachineNamespace); err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", identity, err)
		}
	}
	table.Flush()
	if err := errors.Join(table.Error(), os.WriteFile(s.tokenFile(), known.Bytes(), 0o600)); err != nil {
		return fmt.Errorf("the identities' tokens: %w", err)
	}
	return nil
}

func writeKubeconfig(file, server string, ca []byte, user, token, namespace string) error {
	const name = "sandbox"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user, Namespace: namespace}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, file)
}
