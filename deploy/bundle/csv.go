package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/blang/semver/v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// complete adds to what is written of the ClusterServiceVersion by hand what the manifests say.
func (p *parts) complete(csv *unstructured.Unstructured, version string) error {
	spec, is := csv.Object["spec"].(map[string]any)
	if !is {
		return errors.New("it has no spec")
	}
	install, is := spec["install"].(map[string]any)
	if !is {
		return errors.New("it has no spec.install")
	}
	containers, _, err := unstructured.NestedSlice(p.deployment.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		return errors.Join(fmt.Errorf("the Deployment has %d containers, not one", len(containers)), err)
	}
	image, _, err := unstructured.NestedString(containers[0].(map[string]any), "image")
	if err != nil {
		return err
	}
	annotations := csv.GetAnnotations()
	annotations["containerImage"] = image
	if err := p.place(annotations); err != nil {
		return err
	}
	csv.SetAnnotations(annotations)
	csv.SetName("holdfast.v" + version)
	spec["version"] = version
	spec["relatedImages"] = []any{map[string]any{"name": "holdfast", "image": image}}
	install["spec"] = map[string]any{
		"deployments":        []any{map[string]any{"name": p.deployment.GetName(), "label": labels(p.deployment), "spec": p.deployment.Object["spec"]}},
		"permissions":        []any{map[string]any{"serviceAccountName": p.account, "rules": p.own}},
		"clusterPermissions": []any{map[string]any{"serviceAccountName": p.account, "rules": p.everywhere}},
	}
	return nil
}

// place says which namespace to install in. OpenShift's console makes it like this.
func (p *parts) place(annotations map[string]string) error {
	template, err := json.Marshal(p.namespace.Object)
	if err != nil {
		return err
	}
	annotations["operatorframework.io/suggested-namespace"] = p.namespace.GetName()
	annotations["operatorframework.io/suggested-namespace-template"] = string(template)
	if p.namespace.GetLabels()["openshift.io/cluster-monitoring"] == "true" {
		annotations["operatorframework.io/cluster-monitoring"] = "true"
	}
	return nil
}

// files are the objects of the bundle by file. OLM sets the namespace.
func (p *parts) files(csv *unstructured.Unstructured) map[string]*unstructured.Unstructured {
	files := map[string]*unstructured.Unstructured{csvFile: csv}
	for _, o := range p.manifests {
		o = o.DeepCopy()
		o.SetNamespace("")
		files["manifests/"+o.GetName()+"."+strings.ToLower(o.GetKind())+".yaml"] = o
	}
	return files
}

func labels(o *unstructured.Unstructured) map[string]any {
	out := map[string]any{}
	for key, value := range o.GetLabels() {
		out[key] = value
	}
	return out
}

// version is a semantic version for an image's tag: v1 is 1.0.0, and what is no version, such as a commit, comes before all
// versions, as 0.0.0-gCOMMIT.
func version(tag string) string {
	if strings.HasPrefix(tag, "v") || strings.Contains(tag, ".") {
		if v, err := semver.ParseTolerant(tag); err == nil {
			v.Build = nil // the name of the ClusterServiceVersion is also a label, which may have no plus sign
			return v.String()
		}
	}
	return "0.0.0-g" + regexp.MustCompile(`[^0-9A-Za-z-]+`).ReplaceAllString(tag, "-")
}
