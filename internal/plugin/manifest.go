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

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// manifest is the replacement of a Machine as it is to be created.
func (o *replaceOptions) manifest(t terminal, old *machinev1beta1.Machine) (*machinev1beta1.Machine, error) {
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
		return strings.HasPrefix(key, "holdfast.dev/") || key == corev1.LastAppliedConfigAnnotation || key == "machine.openshift.io/instance-state" ||
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
		raw, err := o.changed(t, "Machine "+old.Name, value)
		if err != nil {
			return nil, err
		}
		next.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
	}
	return next, nil
}

// changes says whether the flags change the providerSpec.
func (o *replaceOptions) changes() bool { return o.instanceType != "" || len(o.set) > 0 }

// changed is a providerSpec with what the flags change. of is whose it is, for people.
func (o *replaceOptions) changed(t terminal, of string, spec *runtime.RawExtension) ([]byte, error) {
	changes, err := o.settings(of, spec)
	if err != nil {
		return nil, err
	}
	if len(changes) == 0 {
		return spec.Raw, nil
	}
	var value any
	if err := json.Unmarshal(spec.Raw, &value); err != nil {
		return nil, fmt.Errorf("read providerSpec of %s: %w", of, err)
	}
	for _, change := range changes {
		path, text, _ := strings.Cut(change, "=")
		fresh, err := setPath(value, path, text)
		if err != nil {
			return nil, usage("--set %s: %v", change, err)
		}
		if fresh {
			fmt.Fprintf(t.err, "Note: %s has no %s in its providerSpec; it is added.\n", plain(of), plain(path))
		}
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("write providerSpec of %s: %w", of, err)
	}
	return raw, nil
}

// settings are the changes of a providerSpec, each PATH=VALUE.
func (o *replaceOptions) settings(of string, spec *runtime.RawExtension) ([]string, error) {
	for _, change := range o.set {
		path, value, ok := strings.Cut(change, "=")
		if !ok || path == "" {
			return nil, usage("--set is %q; it is PATH=VALUE, such as rootVolume.size=200", change)
		}
		if placeholder(value) {
			return nil, usage("--set %s sets a placeholder; give the value itself", change)
		}
	}
	if placeholder(o.instanceType) {
		return nil, usage("--instance-type is %q, a placeholder; give an instance type of the platform", o.instanceType)
	}
	if !o.changes() {
		return nil, nil
	}
	if spec == nil {
		return nil, fmt.Errorf("%s has no providerSpec that could be changed", of)
	}
	if o.instanceType == "" {
		return o.set, nil
	}
	var has map[string]json.RawMessage
	if err := json.Unmarshal(spec.Raw, &has); err != nil {
		return nil, fmt.Errorf("read providerSpec of %s: %w", of, err)
	}
	for _, field := range [...]string{"instanceType", "vmSize", "machineType", "flavor"} {
		if _, ok := has[field]; ok {
			return append([]string{field + "=" + o.instanceType}, o.set...), nil
		}
	}
	return nil, usage("the providerSpec of %s has none of instanceType, vmSize, machineType and flavor; say with --set what to change", of)
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

// setPath sets what a path such as a.b[0].c leads to, and says whether it was not there before. A value
// keeps the type of the one that it replaces where that is a string, else it is what YAML makes of it.
func setPath(root any, path, text string) (fresh bool, err error) {
	steps := strings.Split(strings.ReplaceAll(strings.ReplaceAll(path, "[", "."), "]", ""), ".")
	at := root
	for i, step := range steps {
		last := i == len(steps)-1
		if step == "" {
			return false, fmt.Errorf("the path has an empty step")
		}
		switch here := at.(type) {
		case map[string]any:
			is, ok := here[step]
			if last {
				here[step], err = typedLike(is, text)
				return !ok, err
			}
			if !ok || is == nil {
				is = map[string]any{}
				here[step] = is
			}
			at = is
		case []any:
			n, err := strconv.Atoi(step)
			if err != nil || n < 0 || n >= len(here) {
				return false, fmt.Errorf("%s is a list of %d, and %q is no place in it", strings.Join(steps[:i], "."), len(here), step)
			}
			if last {
				here[n], err = typedLike(here[n], text)
				return false, err
			}
			at = here[n]
		default:
			return false, fmt.Errorf("%s is neither an object nor a list", strings.Join(steps[:i], "."))
		}
	}
	return false, nil
}

func typedLike(was any, text string) (any, error) {
	if _, ok := was.(string); ok {
		return text, nil
	}
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		return nil, fmt.Errorf("%q is no value", text)
	}
	return value, nil
}

// printManifest prints what would be written, without the empty fields that Go's types add.
func printManifest(t terminal, o client.Object) error {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return fmt.Errorf("write the manifest of %s: %w", o.GetName(), err)
	}
	delete(object, "status")
	if metadata, ok := object["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
		delete(metadata, "managedFields")
	}
	if spec, ok := object["spec"].(map[string]any); ok {
		delete(spec, "lifecycleHooks")
		if empty, ok := spec["metadata"].(map[string]any); ok && len(empty) == 0 {
			delete(spec, "metadata")
		}
	}
	return printData(t.out, "yaml", object)
}
