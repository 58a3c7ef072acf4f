package plugin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// manifest is the manifest of a Machine's replacement.
func (o *replaceOptions) manifest(old *machinev1beta1.Machine) (*machinev1beta1.Machine, error) {
	next := &machinev1beta1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: old.Namespace, Name: cmp.Or(o.name, nextName(old)),
			Labels: maps.Clone(old.Labels), Annotations: maps.Clone(old.Annotations),
		},
		Spec: *old.Spec.DeepCopy(),
	}
	if problems := validation.IsDNS1123Subdomain(next.Name); problems != nil {
		return nil, usage("%q is no name for a Machine: %s", next.Name, strings.Join(problems, ", "))
	}
	if next.Name == old.Name {
		return nil, usage("--name is the old Machine's own name; the new one needs another")
	}
	// What says where the old one runs, or what was written on it by those who look after it.
	maps.DeleteFunc(next.Annotations, func(key, _ string) bool {
		return strings.HasPrefix(key, "holdfast.dev/") || key == corev1.LastAppliedConfigAnnotation || key == "machine.openshift.io/instance-state" || key == "machine.openshift.io/exclude-node-draining" ||
			slices.ContainsFunc(quorum.InstanceAnnotations[:], func(a struct{ Key, Prefix string }) bool { return a.Key == key })
	})
	delete(next.Labels, "machine.openshift.io/instance-type")
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	next.Labels[replacesLabel] = string(old.UID)
	next.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
	next.Spec.ProviderID = nil

	if value := old.Spec.ProviderSpec.Value; value != nil || o.changes() {
		raw, err := o.changed("Machine "+old.Name, value)
		if err != nil {
			return nil, err
		}
		next.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
	}
	return next, nil
}

// changes says whether the flags change the providerSpec.
func (o *replaceOptions) changes() bool { return o.instanceType != "" || o.patch != "" }

// changed is a providerSpec with what the flags change. of is whose it is, for people.
func (o *replaceOptions) changed(of string, spec *runtime.RawExtension) (raw []byte, err error) {
	if placeholder(o.instanceType) {
		return nil, usage("--instance-type is %q, a placeholder; give an instance type of the platform", o.instanceType)
	}
	if spec == nil {
		return nil, fmt.Errorf("%s has no providerSpec that could be changed", of)
	}
	raw = spec.Raw
	if o.patch != "" {
		if raw, err = patched(raw, []byte(o.patch)); err != nil {
			return nil, usage("--patch does not apply to the providerSpec of %s: %v; it is a JSON patch, as for kubectl patch --type=json", of, err)
		}
	}
	if o.instanceType == "" {
		return raw, nil
	}
	var has map[string]any
	if err := json.Unmarshal(raw, &has); err != nil {
		return nil, fmt.Errorf("read providerSpec of %s: %w", of, err)
	}
	for _, field := range [...]string{"instanceType", "vmSize", "machineType", "flavor"} {
		if _, ok := has[field]; ok {
			has[field] = o.instanceType
			return json.Marshal(has)
		}
	}
	return nil, usage("the providerSpec of %s has none of instanceType, vmSize, machineType and flavor; say with --patch what to change", of)
}

// patched is a JSON document with a JSON patch (RFC 6902) applied, which may be written as YAML.
func patched(raw, patch []byte) ([]byte, error) {
	patch, err := yaml.YAMLToJSON(patch)
	if err != nil {
		return nil, err
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	return operations.Apply(raw)
}

// placeholder says whether a value is what stands for one in a text that was copied.
func placeholder(value string) bool {
	return value == "..." || strings.HasPrefix(value, "<") && strings.HasSuffix(value, ">")
}

// nextName is the old name with five characters that follow from the old UID, so that the command makes
// the same name each time. Those that it made before are cut off.
func nextName(old *machinev1beta1.Machine) string {
	base := old.Name
	if _, ours := old.Labels[replacesLabel]; ours {
		base = regexp.MustCompile(`-[0-9a-z]{5}$`).ReplaceAllString(base, "")
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(old.UID)) // it never fails
	tail := rand.SafeEncodeString(strconv.FormatUint(h.Sum64(), 36) + "00000")
	return base + "-" + tail[:5]
}
