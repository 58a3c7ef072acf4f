package cpms

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/openshift/cluster-control-plane-machine-set-operator/pkg/machineproviders/providers/openshift/machine/v1beta1/failuredomain"
	"github.com/openshift/cluster-control-plane-machine-set-operator/pkg/machineproviders/providers/openshift/machine/v1beta1/providerconfig"
	"k8s.io/apimachinery/pkg/runtime"
)

// template is a set's template, read.
type template struct {
	machine *machinev1.OpenShiftMachineV1Beta1MachineTemplate
	config  providerconfig.ProviderConfig
	domains []failuredomain.FailureDomain // each complete: what it leaves open is as the provider spec says
	infra   *configv1.Infrastructure
}

// readTemplate reads a template. infra is the cluster's Infrastructure, where vSphere and Nutanix keep what a failure domain's name stands for.
func readTemplate(set *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure) (_ *template, err error) {
	defer rescue(&err)
	if infra == nil {
		infra = &configv1.Infrastructure{}
	}
	t := &template{machine: set.Spec.Template.OpenShiftMachineV1Beta1Machine, infra: infra}
	if t.machine == nil {
		return nil, fmt.Errorf("spec.template.machineType is %q, and only %s is known", set.Spec.Template.MachineType, machinev1.OpenShiftMachineV1Beta1MachineType)
	}
	if t.config, err = t.read(t.machine.Spec); err != nil {
		return nil, fmt.Errorf("spec.template.machines_v1beta1_machine_openshift_io.spec.providerSpec: %w", err)
	}
	domains, err := failuredomain.NewFailureDomains(t.machine.FailureDomains)
	if err != nil {
		return nil, fmt.Errorf("spec.template.machines_v1beta1_machine_openshift_io.failureDomains: %w", err)
	}
	if len(domains) == 0 {
		return t, nil
	}
	if p := t.machine.FailureDomains.Platform; p != t.config.Type() {
		return nil, fmt.Errorf("the failure domains are those of %s, and the provider spec is one of %s", p, t.config.Type())
	}
	if t.domains, err = failuredomain.CompleteFailureDomains(domains, t.config.ExtractFailureDomain()); err != nil {
		return nil, fmt.Errorf("the failure domains do not fit the provider spec: %w", err)
	}
	for i, d := range t.domains {
		if _, _, err := t.inDomain(d); err != nil {
			return nil, err
		}
		for _, other := range t.domains[:i] {
			if d.String() == other.String() {
				return nil, fmt.Errorf("failure domain %s is listed twice", d)
			}
		}
	}
	return t, nil
}

// read reads a provider spec. Its text is put in order first: on a platform that the library does not know, it compares texts.
func (t *template) read(spec machinev1beta1.MachineSpec) (_ providerconfig.ProviderConfig, err error) {
	defer rescue(&err)
	if spec.ProviderSpec.Value == nil {
		return nil, errors.New("there is none")
	}
	ordered, err := inOrder(spec.ProviderSpec.Value.Raw)
	if err != nil {
		return nil, err
	}
	spec.ProviderSpec.Value = &runtime.RawExtension{Raw: ordered}
	return providerconfig.NewProviderConfigFromMachineSpec(logr.Discard(), spec, t.infra) //nolint:wrapcheck // says what it reads
}

// inOrder writes a JSON object anew, its keys in the alphabet's order.
func inOrder(raw []byte) ([]byte, error) {
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("is no JSON object: %w", err)
	}
	return json.Marshal(object)
}

// rescue makes an error of a panic: the library expects parts of a provider spec that nobody has to fill in.
func rescue(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the platform's library cannot read it: %v", p)
	}
}

// inDomain is the template's provider spec in a failure domain. The template is read anew for it: on vSphere, the library writes into
// what it was given.
func (t *template) inDomain(d failuredomain.FailureDomain) (before []byte, moved providerconfig.ProviderConfig, err error) {
	defer rescue(&err)
	config, err := t.read(t.machine.Spec)
	if err != nil {
		return nil, nil, err
	}
	if before, err = config.RawConfig(); err != nil {
		return nil, nil, fmt.Errorf("write the provider spec: %w", err)
	}
	if moved, err = config.InjectFailureDomain(d); err != nil {
		return nil, nil, fmt.Errorf("put failure domain %s into the provider spec: %w", d, err)
	}
	return before, moved, nil
}

// compare says in which failure domain a Machine is, in the words of the set's ("" where the set has none), and how it differs from the
// template otherwise; nil if it does not.
func (t *template) compare(spec machinev1beta1.MachineSpec) (domain string, differs []string, err error) {
	defer rescue(&err)
	config, err := t.read(spec)
	if err != nil {
		return "", nil, err
	}
	if config.Type() != t.config.Type() {
		return "", []string{fmt.Sprintf("its platform is %s, not %s", config.Type(), t.config.Type())}, nil
	}
	want := t.config
	if len(t.domains) > 0 {
		own := config.ExtractFailureDomain()
		domain = own.String()
		if i := slices.IndexFunc(t.domains, own.Equal); i >= 0 {
			domain = t.domains[i].String()
		}
		if _, want, err = t.inDomain(own); err != nil {
			return "", nil, err
		}
	}
	differs, err = differences(config, want)
	return domain, differs, err
}

// hash is a fingerprint of what a Machine is created from.
func (t *template) hash() string {
	raw, _ := json.Marshal(t.machine.Spec) // its provider spec has been read, so it is JSON
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}
