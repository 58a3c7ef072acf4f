package assets

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// Files of the module github.com/openshift/api.
const (
	MachineCRD         = "machine/v1beta1/zz_generated.crd-manifests/0000_10_machine-api_01_machines-Default.crd.yaml"
	MachineSetCRD      = "machine/v1beta1/zz_generated.crd-manifests/0000_10_machine-api_01_machinesets-Default.crd.yaml"
	HealthCheckCRD     = "machine/v1beta1/zz_generated.crd-manifests/0000_10_machine-api_01_machinehealthchecks.crd.yaml"
	ControlPlaneSetCRD = "machine/v1/zz_generated.crd-manifests/0000_10_control-plane-machine-set_01_controlplanemachinesets-Default.crd.yaml"
	ClusterOperatorCRD = "config/v1/zz_generated.crd-manifests/0000_00_cluster-version-operator_01_clusteroperators.crd.yaml"
	ClusterVersionCRD  = "config/v1/zz_generated.crd-manifests/0000_00_cluster-version-operator_01_clusterversions-Default.crd.yaml"
	InfrastructureCRD  = "config/v1/zz_generated.crd-manifests/0000_10_config-operator_01_infrastructures-Default.crd.yaml"
	DNSCRD             = "config/v1/zz_generated.crd-manifests/0000_10_config-operator_01_dnses-Default.crd.yaml"
	FeatureGateCRD     = "config/v1/zz_generated.crd-manifests/0000_10_config-operator_01_featuregates.crd.yaml"
	KubeAPIServerCRD   = "operator/v1/zz_generated.crd-manifests/0000_20_kube-apiserver_01_kubeapiservers-Default.crd.yaml"
)

// ScalableSet is ControlPlaneSetCRD with this patch of the repository, by which replicas can be changed.
const ScalableSet = "deploy/components/scalable-set/crd-patch.yaml"

// MachineAPI are the CRDs of Machines, MachineSets and MachineHealthChecks.
func MachineAPI() []string { return []string{MachineCRD, MachineSetCRD, HealthCheckCRD} }

// CRDs reads these files out of the module in Go's module cache, so that they are never a copy that has aged.
func CRDs(files ...string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	command := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/openshift/api") //nolint:noctx // it reads go.mod
	command.Dir = root
	out, err := command.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	dir := strings.TrimSpace(string(out))
	if err == nil && dir == "" {
		err = errors.New("it is not in the module cache: run `go mod download` in " + root)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the module github.com/openshift/api: %w", err)
	}
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		patch := ""
		if file == ScalableSet {
			file, patch = ControlPlaneSetCRD, filepath.Join(root, file)
		}
		crd, err := readCRD(filepath.Join(dir, file), patch)
		if err != nil {
			return nil, err
		}
		all = append(all, crd)
	}
	return all, nil
}

// readCRD reads a CRD, and patches it unless patch is "". An API server before Kubernetes 1.32 refuses the functions in some CRDs' rules,
// and gets them without these rules: a new CRD may use a function one version after the first that has it.
func readCRD(file, patch string) (*apiextensionsv1.CustomResourceDefinition, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if newer.Match(text) { // where none does, no kube-apiserver has to be there
		old, err := Before("kube-apiserver", "1.32")
		if err != nil {
			return nil, err
		}
		if old {
			withoutRules(tree)
		}
	}
	if text, err = json.Marshal(tree); err != nil {
		return nil, err
	}
	if patch != "" {
		if text, err = patched(text, patch); err != nil {
			return nil, fmt.Errorf("%s does not fit %s: %w", patch, file, err)
		}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	return crd, json.Unmarshal(text, crd)
}

func patched(crd []byte, file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, err
	}
	return patch.Apply(crd)
}

// withoutRules removes the validation rules that an older API server refuses.
func withoutRules(node any) {
	switch node := node.(type) {
	case map[string]any:
		if rules, ok := node[validations].([]any); ok {
			node[validations] = slices.DeleteFunc(rules, func(r any) bool { return newer.MatchString(fmt.Sprint(r)) })
		}
		for _, child := range node {
			withoutRules(child)
		}
	case []any:
		for _, child := range node {
			withoutRules(child)
		}
	}
}

const validations = "x-kubernetes-validations"

// newer are the functions that came with Kubernetes 1.30 (of addresses) and 1.31 (of names' formats).
var newer = regexp.MustCompile(`\b(format\.|isIP\(|ip\(|isCIDR\(|cidr\()`)
