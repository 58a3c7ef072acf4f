package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// MachineNamespace is where Machines live.
const MachineNamespace = "openshift-machine-api"

// InstanceType is that of the first Machines.
const InstanceType = "m5.large"

type object = *unstructured.Unstructured

// parse reads the objects of a YAML text; name is for errors.
func parse(name string, text []byte) ([]object, error) {
	var objects []object
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var u unstructured.Unstructured
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(u.Object) > 0 {
			objects = append(objects, &u)
		}
	}
}

// apply sends the objects by server-side apply, and then their statuses. It tries again while the API
// server is not ready for them, just after their CRD was made for one.
func (s *Sandbox) apply(ctx context.Context, objects ...object) error {
	for _, u := range objects {
		answered := u.DeepCopy() // the answer is put into it
		err := s.poll(ctx, func(ctx context.Context) error {
			err := s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(answered), client.FieldOwner("sandbox"), client.ForceOwnership)
			if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) {
				return permanent{err}
			}
			return err
		})
		if _, has := u.Object["status"]; has && err == nil {
			err = s.poll(ctx, func(ctx context.Context) error {
				return s.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("sandbox"), client.ForceOwnership)
			})
		}
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// installCRDs returns once the API server serves all of them.
func (s *Sandbox) installCRDs(ctx context.Context) error {
	files := append(assets.MachineAPI(), assets.ClusterOperatorCRD, assets.InfrastructureCRD, assets.DNSCRD)
	switch {
	case s.options.PlatformSets:
		files = append(files, assets.ControlPlaneSetCRD, assets.ClusterVersionCRD, assets.FeatureGateCRD)
	case s.options.Mode == "full":
		files = append(files, assets.ScalableSet)
	default:
		files = append(files, assets.ControlPlaneSetCRD)
	}
	crds, err := assets.CRDs(files...)
	if err != nil {
		return err
	}
	return s.poll(ctx, func(context.Context) error {
		_, err := envtest.InstallCRDs(s.Config(Admin), envtest.CRDInstallOptions{CRDs: crds, MaxTime: time.Minute})
		return err
	})
}

// cluster are the objects that an installed cluster has: namespaces, the
// install-config, and what binds identities to their rights.
func (s *Sandbox) cluster() ([]object, error) {
	text := &strings.Builder{}
	namespaces := []string{MachineNamespace, "openshift-etcd", "openshift-etcd-operator", "gitops"}
	if !s.options.ForInstall {
		namespaces = append(namespaces, "holdfast-system")
	}
	for _, namespace := range namespaces {
		fmt.Fprintf(text, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", namespace)
	}
	fmt.Fprintf(text, `apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-config-v1, namespace: kube-system}
data:
  install-config: |
    apiVersion: v1
    metadata:
      name: sandbox
    baseDomain: example.com
    controlPlane:
      name: master
      replicas: %d
      platform: {}
    compute:
    - name: worker
      replicas: 0
      platform: {}
    platform:
      none: {}
---
apiVersion: config.openshift.io/v1
kind: DNS
metadata: {name: cluster}
spec: {baseDomain: example.com}
---
apiVersion: config.openshift.io/v1
kind: Infrastructure
metadata: {name: cluster}
spec: {platformSpec: {type: None}}
status: {infrastructureName: sandbox, platformStatus: {type: None}} # on no cloud that machine-api-operator's webhooks know
`, s.options.Replicas)
	if s.options.FromBootstrap { // the installer marks its member there
		fmt.Fprintf(text, `---
apiVersion: v1
kind: ConfigMap
metadata: {name: %s, namespace: %s, annotations: {%s: "%s"}}
`, hostenv.EndpointsName, hostenv.Namespace, observe.BootstrapAnnotation, s.bootstrapAddress())
	}

	bound := []Identity{Alice, GitOps, MachineAPI, EtcdOperator, SetOperatorIdentity, controllerManager}
	for _, identity := range bound {
		fmt.Fprintf(text, `---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sandbox-%s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "%s"}]
`, identity.File(), identity)
	}
	objects, err := parse("cluster", []byte(text.String()))
	if err != nil {
		return nil, err
	}
	rights, err := s.rights()
	return append(objects, rights...), err
}

// rights are Holdfast's, where it does not bring them itself.
func (s *Sandbox) rights() ([]object, error) {
	if s.options.ForInstall {
		return nil, nil
	}
	root, err := assets.Root()
	if err != nil {
		return nil, err
	}
	files := []string{"deploy/base/rbac.yaml"}
	if s.options.Mode == "full" {
		files = append(files, "deploy/components/full-mode/rbac.yaml")
	}
	var all []object
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			return nil, fmt.Errorf("holdfast's rights: %w", err)
		}
		objects, err := parse(file, text)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// machine is the manifest of a first Machine.
func machine(name string) (object, error) {
	objects, err := parse(name, fmt.Appendf(nil, `apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  name: %s
  namespace: %s
  labels:
    machine.openshift.io/cluster-api-cluster: sandbox
    machine.openshift.io/cluster-api-machine-role: master
    machine.openshift.io/cluster-api-machine-type: master
spec:
  providerSpec:
    value:
      apiVersion: process.holdfast.dev/v1
      kind: ProcessMachineProviderSpec
      instanceType: %s
`, name, MachineNamespace, InstanceType))
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

// Replacement is the Machine that a person makes by the documented procedure of
// a resize: a copy of the old one's manifest, hooks and annotations included,
// without status and provider ID, under a new name and with a new instance type.
func Replacement(old *machinev1beta1.Machine, name, instanceType string) (*machinev1beta1.Machine, error) {
	spec := map[string]any{}
	if old.Spec.ProviderSpec.Value != nil {
		if err := json.Unmarshal(old.Spec.ProviderSpec.Value.Raw, &spec); err != nil {
			return nil, fmt.Errorf("providerSpec of Machine %s: %w", old.Name, err)
		}
	}
	spec["instanceType"] = instanceType
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("providerSpec of Machine %s: %w", name, err)
	}
	copied := old.DeepCopy()
	copied.TypeMeta = metav1.TypeMeta{APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine"}
	copied.ObjectMeta = metav1.ObjectMeta{
		Name: name, Namespace: old.Namespace, Labels: copied.Labels, Annotations: copied.Annotations,
	}
	copied.Spec.ProviderID = nil
	copied.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
	copied.Status = machinev1beta1.MachineStatus{}
	return copied, nil
}
