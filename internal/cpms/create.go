package cpms

import (
	"encoding/json"
	"fmt"
	"maps"

	jsonpatch "github.com/evanphx/json-patch/v5"
	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// TemplateAnnotation on a Machine is the fingerprint of the provider spec that the API server made of the template when the set created it.
const TemplateAnnotation = "holdfast.dev/template-hash"

// Trial is what the API server answered to a dry run of Trials, in their order.
type Trial struct {
	Machines []*machinev1beta1.Machine
	Why      string // why it is not known what it makes of them, for people; "" if it is
}

// Trials are the Machines that a set would create: one for each of its failure domains, or one.
func Trials(set *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure) ([]*machinev1beta1.Machine, error) {
	_, t, err := parts(set, infra)
	if err != nil {
		return nil, err
	}
	var machines []*machinev1beta1.Machine
	for i := range max(1, len(t.domains)) {
		create := machineset.Create{Index: i}
		if len(t.domains) > 0 {
			create.Domain = t.domains[i].String()
		}
		m, err := t.newMachine(set, create, "check")
		if err != nil {
			return nil, err
		}
		m.OwnerReferences = nil // the set may not be stored yet
		machines = append(machines, m)
	}
	return machines, nil
}

// NewMachine is the Machine that a set is to create. random makes its name unlike any other.
func NewMachine(set *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure, trial Trial, create machineset.Create, random string) (*machinev1beta1.Machine, error) {
	_, t, err := parts(set, infra)
	if err != nil {
		return nil, err
	}
	t.try(trial)
	m, err := t.newMachine(set, create, random)
	if err != nil {
		return nil, err
	}
	for _, s := range t.stored {
		if s.domain == create.Domain {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, TemplateAnnotation, s.hash)
		}
	}
	return m, nil
}

func (t *template) newMachine(set *machinev1.ControlPlaneMachineSet, create machineset.Create, random string) (*machinev1beta1.Machine, error) {
	m := &machinev1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       set.Namespace,
			Name:            fmt.Sprintf("%s-%s-%d", prefix(set, t.machine.ObjectMeta.Labels), random, create.Index),
			Labels:          maps.Clone(t.machine.ObjectMeta.Labels),
			Annotations:     maps.Clone(t.machine.ObjectMeta.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, machinev1.GroupVersion.WithKind("ControlPlaneMachineSet"))},
		},
		Spec: *t.machine.Spec.DeepCopy(),
	}
	if create.Domain == "" {
		return m, nil
	}
	raw, err := t.in(create.Domain)
	if err != nil {
		return nil, err
	}
	m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
	return m, nil
}

// in is the template's provider spec in one of its failure domains. The library knows a provider spec's fields of its own version only,
// and writes no others: what it changes is put into the template's own text, so that the rest stays as it is.
func (t *template) in(domain string) ([]byte, error) {
	for _, d := range t.domains {
		if d.String() != domain {
			continue
		}
		before, moved, err := t.inDomain(d)
		if err != nil {
			return nil, err
		}
		after, err := moved.RawConfig()
		if err != nil {
			return nil, fmt.Errorf("write the provider spec in failure domain %s: %w", domain, err)
		}
		change, err := jsonpatch.CreateMergePatch(before, after)
		if err != nil {
			return nil, fmt.Errorf("compare the provider spec with that in failure domain %s: %w", domain, err)
		}
		return jsonpatch.MergePatch(json.RawMessage(t.machine.Spec.ProviderSpec.Value.Raw), change) //nolint:wrapcheck // both are JSON
	}
	return nil, fmt.Errorf("the set has no failure domain %s", domain)
}
