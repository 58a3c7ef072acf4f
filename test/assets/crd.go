package assets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"sigs.k8s.io/yaml"
)

// SetCRD is the CRD of ControlPlaneMachineSets (YAML or JSON), in JSON. An API server before Kubernetes 1.31 does not know the function in
// one of its rules, and gets it without that rule.
func SetCRD(crd []byte) ([]byte, error) {
	crd, err := yaml.YAMLToJSON(crd)
	if err != nil {
		return nil, fmt.Errorf("the CRD of ControlPlaneMachineSets: %w", err)
	}
	old, err := Before("kube-apiserver", "1.31")
	if err != nil || !old {
		return crd, err
	}
	out := rule.ReplaceAll(crd, nil)
	if len(out) == len(crd) {
		return nil, errors.New("the CRD of ControlPlaneMachineSets has no rule with format.dns1123Subdomain any more")
	}
	return out, nil
}

// rule is the list of that one rule.
var rule = regexp.MustCompile(`,"x-kubernetes-validations":\[\{"message":"[^"]*","rule":"!format\.dns1123Subdomain[^"]*"\}\]`)

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
	if crd, err = SetCRD(crd); err != nil {
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
