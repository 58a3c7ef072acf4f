package plugin

import (
	"cmp"
	"encoding/json"
	"errors"
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

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// manifest is the manifest of a Machine's replacement.
func (o *replaceOptions) manifest(old *machinev1beta1.Machine) (*machinev1beta1.Machine, error) {
	next := &machinev1beta1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: old.Namespace, Name: cmp.Or(o.name, nextName(old, "")),
			Labels: maps.Clone(old.Labels), Annotations: maps.Clone(old.Annotations),
		},
		Spec: *old.Spec.DeepCopy(),
	}
	problems := validation.IsDNS1123Subdomain(next.Name)
	if len(next.Name) > longestName {
		problems = append(problems, fmt.Sprintf("must be no more than %d characters, as a host's name", longestName))
	}
	if problems != nil {
		return nil, cli.Usage("%q is no name for a Machine: %s", next.Name, strings.Join(problems, ", "))
	}
	if next.Name == old.Name {
		return nil, cli.Usage("--name is the old Machine's own name; the new one needs another")
	}
	// What says where the old one runs, or what was written on it by those who look after it.
	maps.DeleteFunc(next.Labels, func(key, _ string) bool { return tracks(key) })
	maps.DeleteFunc(next.Annotations, func(key, _ string) bool {
		return tracks(key) || strings.HasPrefix(key, "holdfast.dev/") || strings.HasPrefix(key, "remediation.metal3.io/") || key == quorum.RemediationAnnotation || key == corev1.LastAppliedConfigAnnotation || key == "machine.openshift.io/instance-state" || key == excludeDraining ||
			slices.ContainsFunc(quorum.InstanceAnnotations[:], func(a struct{ Key, Prefix string }) bool { return a.Key == key })
	})
	delete(next.Labels, "machine.openshift.io/instance-type")
	metav1.SetMetaDataLabel(&next.ObjectMeta, replacesLabel, string(old.UID))
	next.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
	next.Spec.ProviderID = nil

	if value := old.Spec.ProviderSpec.Value; value != nil || o.changes() {
		raw, err := o.changed("Machine "+old.Name, value)
		if err != nil {
			return nil, err
		}
		if err := ownAddresses(old.Name, value.Raw, raw); err != nil {
			return nil, err
		}
		next.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
	}
	return next, nil
}

// tracks reports whether a label or an annotation makes an object a GitOps tool's or a package's: the tool would delete a copy that is not in Git.
func tracks(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	switch domain {
	case "argocd.argoproj.io", "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io", "meta.helm.sh", "config.k8s.io", "configsync.gke.io", "objectset.rio.cattle.io":
		return true
	}
	return key == "app.kubernetes.io/instance" || key == "app.kubernetes.io/managed-by" // Argo CD's and Helm's
}

// ownAddresses refuses a copy whose providerSpec has a fixed address of the old Machine: the voter's own.
func ownAddresses(machine string, old, copied []byte) error {
	var was, is any
	if err := errors.Join(json.Unmarshal(old, &was), json.Unmarshal(copied, &is)); err != nil {
		return fmt.Errorf("read providerSpec of Machine %s: %w", machine, err)
	}
	theirs, own := slices.Collect(maps.Values(fixed(was, "", false))), fixed(is, "", false)
	for _, at := range slices.Sorted(maps.Keys(own)) {
		if slices.Contains(theirs, own[at]) {
			return cli.Usage(`the providerSpec of Machine %s has the fixed address %s at %s, and a copy would take it from the Machine; give the copy one of its own: --patch '[{op: replace, path: %s, value: <address>}]'`,
				machine, own[at], at, at)
		}
	}
	return nil
}

// fixed are the addresses that a providerSpec gives one Machine alone, by their JSON pointer: vSphere's ipAddrs, OpenStack's floatingIP, and
// ipAddress and macAddress of its ports. here says that the value is in such a field.
func fixed(value any, at string, here bool) map[string]string {
	out := map[string]string{}
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			if key == "allowedAddressPairs" { // shared addresses
				continue
			}
			maps.Copy(out, fixed(below, at+"/"+key, slices.Contains([]string{"ipAddrs", "ipAddress", "floatingIP", "macAddress"}, key)))
		}
	case []any:
		for i, below := range v {
			maps.Copy(out, fixed(below, fmt.Sprintf("%s/%d", at, i), here))
		}
	case string:
		if here && v != "" {
			out[at] = v
		}
	}
	return out
}

// changes reports whether the flags change the providerSpec.
func (o *replaceOptions) changes() bool { return o.instanceType != "" || o.patch != "" }

// changed is a providerSpec with what the flags change. of is whose it is, for people.
func (o *replaceOptions) changed(of string, spec *runtime.RawExtension) (raw []byte, err error) {
	if placeholder(o.instanceType) {
		return nil, cli.Usage("--instance-type is %q, a placeholder; give an instance type of the platform", o.instanceType)
	}
	if spec == nil {
		return nil, fmt.Errorf("%s has no providerSpec that could be changed", of)
	}
	raw = spec.Raw
	if o.patch != "" {
		if raw, err = patched(raw, []byte(o.patch)); err != nil {
			return nil, cli.Usage("--patch does not apply to the providerSpec of %s: %v; it is a JSON patch, as for kubectl patch --type=json", of, err)
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
	return nil, cli.Usage("the providerSpec of %s has none of instanceType, vmSize, machineType and flavor; say with --patch what to change", of)
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

// placeholder reports whether a value is what stands for one in a text that was copied.
func placeholder(value string) bool {
	return value == "..." || strings.HasPrefix(value, "<") && strings.HasSuffix(value, ">")
}

// longestName is how long a Machine's name may be: it is the host's name and a label's value on many platforms.
const longestName = validation.LabelValueMaxLength

// generated is a name as the platform's set operator and this command make it: <prefix>-<5 characters>-<index>. The characters are those of
// Kubernetes' generated names. One without an index, and one of a person's, lack the groups.
var generated = regexp.MustCompile(`^(.*?)(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?(-[0-9]+)?$`)

// nextName is the old name with other five characters before its index. They follow from the old UID and the salt, so that the command
// makes the same name each time.
func nextName(old *machinev1beta1.Machine, salt string) string {
	parts := generated.FindStringSubmatch(old.Name)
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(old.UID) + salt)) // it never fails
	tail := "-" + rand.SafeEncodeString(strconv.FormatUint(h.Sum64(), 36) + "00000")[:5] + parts[2]
	return strings.TrimRight(parts[1][:min(len(parts[1]), longestName-len(tail))], "-.") + tail
}
