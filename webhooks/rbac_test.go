package webhooks_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// testRBAC applies the rights of guard mode, then those of full mode, and asks the API server each time what
// Holdfast's service account may do.
func (f *fixture) testRBAC(t *testing.T) {
	root, err := assets.Root()
	must(t, err)
	must(t, f.direct.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "openshift-etcd-operator"}}))
	must(t, f.direct.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "openshift-etcd"}}))
	apply := func(names ...string) {
		for _, name := range names {
			file, err := os.Open(filepath.Join(root, "deploy", filepath.FromSlash(name)))
			must(t, err)
			decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
			for {
				var object unstructured.Unstructured
				err := decoder.Decode(&object)
				if errors.Is(err, io.EOF) {
					break
				}
				must(t, err)
				if object.Object != nil { // a document of comments
					must(t, f.direct.Create(t.Context(), &object))
				}
			}
			must(t, file.Close())
		}
	}
	// verb, resource[.group][/name[/subresource]], namespace if any
	may := func(what string) (bool, error) {
		field := strings.Fields(what)
		resource, object, _ := strings.Cut(field[1], "/")
		object, part, _ := strings.Cut(object, "/")
		resource, group, _ := strings.Cut(resource, ".")
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: holdfast, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: field[0], Resource: resource, Group: group, Name: object, Subresource: part, Namespace: strings.Join(field[2:], ""),
		}}}
		err := f.direct.Create(t.Context(), review)
		return review.Status.Allowed, err
	}
	// The authorizer hears of new bindings a moment later.
	allowed := func(list []string) {
		t.Helper()
		for _, what := range list {
			gomega.NewWithT(t).Eventually(may).WithArguments(what).WithTimeout(2*time.Minute).Should(gomega.BeTrue(), what)
		}
	}
	refused := func(list []string) {
		t.Helper()
		for _, what := range list {
			if ok, err := may(what); ok || err != nil {
				t.Errorf("%s: allowed is %t, %v", what, ok, err)
			}
		}
	}
	guard := []string{
		"list machines.machine.openshift.io openshift-machine-api", "patch machines.machine.openshift.io/m openshift-machine-api", "watch nodes",
		"get configmaps/cluster-config-v1 kube-system", "update configmaps/holdfast-members openshift-machine-api", "create configmaps openshift-machine-api",
		"create events.events.k8s.io openshift-machine-api", "patch events.events.k8s.io openshift-machine-api", "create leases.coordination.k8s.io holdfast-system",
		"get clusteroperators.config.openshift.io/holdfast", "create clusteroperators.config.openshift.io", "update clusteroperators.config.openshift.io/holdfast/status",
		"get validatingwebhookconfigurations.admissionregistration.k8s.io/holdfast", "get validatingadmissionpolicybindings.admissionregistration.k8s.io/holdfast-machines",
	}
	full := []string{
		"create machines.machine.openshift.io openshift-machine-api", "delete machines.machine.openshift.io/m openshift-machine-api", "patch nodes/n",
		"patch controlplanemachinesets.machine.openshift.io/cluster openshift-machine-api", "patch controlplanemachinesets.machine.openshift.io/cluster/status openshift-machine-api",
		"update machinehealthchecks.machine.openshift.io/holdfast-control-plane openshift-machine-api",
		"update configmaps/etcd-membership openshift-etcd", "delete configmaps/etcd-membership openshift-etcd", "update configmaps/etcd-endpoints openshift-etcd", "create configmaps openshift-etcd",
		"update endpointslices.discovery.k8s.io/etcd-ipv4 openshift-etcd", "create endpointslices.discovery.k8s.io openshift-etcd",
		"get namespaces/openshift-etcd", "update poddisruptionbudgets.policy/holdfast-quorum-guard openshift-etcd", "create poddisruptionbudgets.policy openshift-etcd",
		"watch pods openshift-etcd", "create pods openshift-etcd", "delete pods/p openshift-etcd",
	}
	neither := []string{
		"update machines.machine.openshift.io/m openshift-machine-api",
		"create machines.machine.openshift.io elsewhere", "delete machines.machine.openshift.io/m elsewhere", "update machines.machine.openshift.io/m elsewhere", "update nodes/n", "delete nodes/n", "get configmaps/other kube-system", "list configmaps kube-system",
		"update configmaps/other openshift-machine-api", "get secrets/s holdfast-system", "get leases.coordination.k8s.io/holdfast openshift-machine-api", "get leases.coordination.k8s.io/other holdfast-system",
		"update clusteroperators.config.openshift.io/etcd/status", "update clusteroperators.config.openshift.io/holdfast", "delete clusteroperators.config.openshift.io/holdfast",
		"get validatingwebhookconfigurations.admissionregistration.k8s.io/other",
		"update configmaps/other openshift-etcd", "delete configmaps/other openshift-etcd", "update endpointslices.discovery.k8s.io/other openshift-etcd",
		"get namespaces/other", "update poddisruptionbudgets.policy/other openshift-etcd", "update deployments.apps/other openshift-etcd", "list deployments.apps openshift-etcd",
		"create pods openshift-machine-api", "create deployments.apps openshift-etcd", "delete pods/p openshift-machine-api", "get secrets/other openshift-etcd", "list secrets openshift-etcd",
		"delete controlplanemachinesets.machine.openshift.io/cluster openshift-machine-api", "create controlplanemachinesets.machine.openshift.io openshift-machine-api", "update machinehealthchecks.machine.openshift.io/other openshift-machine-api",
	}
	apply("base/namespace.yaml", "base/serviceaccount.yaml", "base/rbac.yaml")
	allowed(guard)
	refused(full)
	refused(neither)
	apply("components/full-mode/rbac.yaml")
	allowed(full)
	refused(neither)
}
