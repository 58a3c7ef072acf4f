package cpms

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

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

	// What the API server stores of the Machines that the set creates: one for each failure domain, or one. nil where that is not known.
	stored []stored
	why    string // why it is not known
}

// stored is what the API server makes of the template in one failure domain: webhooks fill in what it leaves out.
type stored struct {
	domain string // in the words of the set's, "" where it has none
	found  string // what the library calls the failure domain that it finds in the stored provider spec
	config providerconfig.ProviderConfig
	hash   string
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
	ordered, err := normal(spec.ProviderSpec.Value.Raw)
	if err != nil {
		return nil, err
	}
	spec.ProviderSpec.Value = &runtime.RawExtension{Raw: ordered}
	return providerconfig.NewProviderConfigFromMachineSpec(logr.Discard(), spec, t.infra) //nolint:wrapcheck // says what it reads
}

// normal writes a provider spec anew, its keys in the alphabet's order. vSphere's has a workspace: the library reads what is in it, and a
// template may leave it out, since the failure domains say it.
func normal(raw []byte) ([]byte, error) {
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("is no JSON object: %w", err)
	}
	if object["kind"] == "VSphereMachineProviderSpec" && object["workspace"] == nil {
		object["workspace"] = map[string]any{}
	}
	return json.Marshal(object)
}

// rescue makes an error of a panic: the library expects parts of a provider spec that are optional.
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

// try takes what the API server answered to a dry run.
func (t *template) try(trial Trial) {
	if t.why = trial.Why; t.why != "" {
		return
	}
	var err error
	if t.stored, err = t.readStored(trial.Machines); err != nil {
		t.stored, t.why = nil, err.Error()
	}
}

func (t *template) readStored(machines []*machinev1beta1.Machine) (all []stored, err error) {
	defer rescue(&err)
	if len(machines) != max(1, len(t.domains)) {
		return nil, errors.New("nobody has tried what the API server makes of the template")
	}
	for i, m := range machines {
		var s stored
		if s.config, err = t.read(m.Spec); err != nil {
			return nil, fmt.Errorf("read what the API server makes of the template: %w", err)
		}
		raw, err := normal(m.Spec.ProviderSpec.Value.Raw)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(raw)
		s.hash = hex.EncodeToString(sum[:8])
		if len(t.domains) > 0 {
			s.domain, s.found = t.domains[i].String(), s.config.ExtractFailureDomain().String()
		}
		for _, other := range all {
			if d, err := differences(s.config, other.config); err == nil && len(d) == 0 {
				return nil, fmt.Errorf("the API server makes one of failure domains %s and %s", other.domain, s.domain)
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// compare says in which failure domain a Machine is, in the words of the set's where it has it ("" where the set has none), how it differs
// from what the set would create there, nil if it does not, and the fingerprint of that. A Machine in no failure domain of the set's is compared
// with nothing: it is in the wrong place.
func (t *template) compare(spec machinev1beta1.MachineSpec) (domain string, differs []string, hash string, err error) {
	defer rescue(&err)
	config, err := t.read(spec)
	if err != nil {
		return "", nil, "", err
	}
	if config.Type() != t.config.Type() {
		return "", []string{fmt.Sprintf("its platform is %s, not %s", config.Type(), t.config.Type())}, "", nil
	}
	if len(t.domains) > 0 {
		domain = t.called(config.ExtractFailureDomain().String())
	}
	if t.why != "" {
		return domain, nil, "", errors.New(t.why)
	}
	for _, s := range t.stored {
		d, err := differences(config, s.config)
		switch {
		case err != nil:
			return "", nil, "", err
		case len(d) == 0:
			return s.domain, nil, s.hash, nil
		case s.domain == domain:
			differs, hash = d, s.hash
		}
	}
	return domain, differs, hash, nil
}

// called is what the set calls a failure domain that was found in a provider spec: by itself, or by what the API server fills in. If
// several of the set's match (vSphere's without a resource pool), it is returned unchanged.
func (t *template) called(found string) string {
	name, n := found, 0
	for i, d := range t.domains {
		switch {
		case d.String() == found:
			return found
		case t.stored != nil && t.stored[i].found == found:
			name, n = d.String(), n+1
		}
	}
	if n > 1 {
		return found
	}
	return name
}
