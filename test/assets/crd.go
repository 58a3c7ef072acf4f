package assets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"sigs.k8s.io/yaml"
)

// CRD is a CustomResourceDefinition of openshift/api (YAML or JSON), in JSON. An API server before Kubernetes 1.32 refuses the functions
// in some of its rules, and gets it without these rules: a new CRD may use a function one version after the first that has it.
func CRD(crd []byte) ([]byte, error) {
	var tree map[string]any
	if err := yaml.Unmarshal(crd, &tree); err != nil {
		return nil, fmt.Errorf("a CRD: %w", err)
	}
	old, err := Before("kube-apiserver", "1.32")
	if err != nil {
		return nil, err
	}
	if old {
		withoutRules(tree)
	}
	return json.Marshal(tree)
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

// ScalableSet is the CRD of ControlPlaneMachineSets (YAML or JSON), in JSON, with the patch of deploy/components/scalable-set.
func ScalableSet(crd []byte) ([]byte, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(root, "deploy", "components", "scalable-set", "crd-patch.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if crd, err = CRD(crd); err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err == nil {
		crd, err = patch.Apply(crd)
	}
	if err != nil {
		return nil, fmt.Errorf("%s does not fit the CRD: %w", file, err)
	}
	return crd, nil
}
