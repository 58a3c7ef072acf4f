package assets

import (
	"fmt"
	"os"
	"path/filepath"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"sigs.k8s.io/yaml"
)

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
	if crd, err = yaml.YAMLToJSON(crd); err != nil {
		return nil, fmt.Errorf("the CRD to patch: %w", err)
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
