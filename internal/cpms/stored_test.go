package cpms

import (
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// created is the Machine that the set creates in its first failure domain, as the API server stores it.
func created(t *testing.T, s *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure, trial Trial, webhooks ...func(spec map[string]any)) *machinev1beta1.Machine {
	t.Helper()
	create := machineset.Create{}
	if domains := Read(s, nil, infra, trial).Domains; len(domains) > 0 {
		create.Domain = domains[0]
	}
	m, err := NewMachine(s, infra, trial, create, "x4k2p")
	if err != nil {
		t.Fatal(err)
	}
	m.UID = "uid"
	edited(t, m, webhooks...)
	return m
}

// place is what a set makes of a Machine.
func placeOf(s *machinev1.ControlPlaneMachineSet, m *machinev1beta1.Machine, infra *configv1.Infrastructure, trial Trial) machineset.Place {
	return Read(s, []machinev1beta1.Machine{*m}, infra, trial).Places["uid"]
}

// TestFilledIn: a Machine is compared with what the API server makes of the template, whoever created it. A change of what it fills in is a
// change of the template.
func TestFilledIn(t *testing.T) {
	secrets := func(spec map[string]any) {
		spec["credentialsSecret"] = map[string]any{"name": "cloud-credentials"}
		spec["userDataSecret"] = map[string]any{"name": "master-user-data"}
	}
	others := func(spec map[string]any) { spec["userDataSecret"] = map[string]any{"name": "other-user-data"} }
	for platform := range platforms() {
		s, infra := set(t, platform), cluster(t)
		trial := tried(t, s, infra, secrets)
		m := created(t, s, infra, trial, secrets)
		if p := placeOf(s, m, infra, trial); p.Outdated != "" || p.Unclear != "" || !p.Fresh {
			t.Errorf("%s: created by Holdfast: %+v", platform, p)
		}
		delete(m.Annotations, TemplateAnnotation)
		if p := placeOf(s, m, infra, trial); p.Outdated != "" || p.Unclear != "" || p.Fresh {
			t.Errorf("%s: created by another: %+v", platform, p)
		}
		m = created(t, s, infra, trial, secrets)
		if p := placeOf(s, m, infra, tried(t, s, infra, secrets, others)); p.Outdated == "" || p.Fresh {
			t.Errorf("%s: after another is filled in: %+v", platform, p)
		}
	}
}

// TestFilledInDomain: a failure domain of which the template leaves a part to webhooks is found in the Machine.
func TestFilledInDomain(t *testing.T) {
	s := set(t, "Azure")
	of := s.Spec.Template.OpenShiftMachineV1Beta1Machine
	leave := &machinev1beta1.Machine{Spec: of.Spec}
	edited(t, leave, func(spec map[string]any) { delete(spec, "subnet") })
	of.Spec = leave.Spec
	subnet := func(spec map[string]any) { spec["vnet"], spec["subnet"] = "demo-vnet", "demo-master-subnet" }
	trial := tried(t, s, nil, subnet)
	m := created(t, s, nil, trial, subnet)
	if p := placeOf(s, m, nil, trial); p.Domain != "AzureFailureDomain{Zone:1}" || p.Outdated != "" {
		t.Errorf("%+v", p)
	}
	edited(t, m, func(spec map[string]any) { spec["vmSize"] = "Standard_D2s_v3" })
	if p := placeOf(s, m, nil, trial); p.Domain != "AzureFailureDomain{Zone:1}" || p.Outdated == "" {
		t.Errorf("of another size: %+v", p)
	}
}

// TestUntried: while nobody knows what the API server makes of the template, no Machine is up to date or outdated. Its failure domain is known.
func TestUntried(t *testing.T) {
	s := set(t, "AWS")
	m := created(t, s, nil, Trial{})
	if len(m.Annotations) > 0 {
		t.Errorf("it has a fingerprint: %v", m.Annotations)
	}
	unreadable := tried(t, s, nil)
	unreadable.Machines[1].Spec.ProviderSpec.Value = nil
	for want, trial := range map[string]Trial{
		"nobody has tried":  {},
		"a webhook is away": {Why: "a webhook is away"},
		"there is none":     unreadable,
		"makes one of failure domains AWSFailureDomain{AvailabilityZone:a, Subnet:{Type:ID, Value:subnet-a}} and": tried(t, s, nil, func(spec map[string]any) {
			spec["placement"], spec["subnet"] = map[string]any{"region": "r"}, nil
		}),
	} {
		if p := placeOf(s, m, nil, trial); !strings.Contains(p.Unclear, want) || !strings.Contains(p.Domain, "AvailabilityZone:a") {
			t.Errorf("%s: %+v", want, p)
		}
	}
}

// TestInfrastructureChange: where Infrastructure has what a failure domain stands for, a change there is a change of the template.
func TestInfrastructureChange(t *testing.T) {
	for platform, change := range map[string]func(*configv1.PlatformSpec){
		"VSphere": func(of *configv1.PlatformSpec) { of.VSphere.FailureDomains[0].Topology.Template = "tmpl-new" },
		"Nutanix": func(of *configv1.PlatformSpec) { of.Nutanix.FailureDomains[0].Subnets[0].UUID = new("subnet-new") },
	} {
		s, infra := set(t, platform), cluster(t)
		m := created(t, s, infra, tried(t, s, infra))
		was := placeOf(s, m, infra, tried(t, s, infra))
		change(&infra.Spec.PlatformSpec)
		p := placeOf(s, m, infra, tried(t, s, infra))
		if p.Outdated == "" || p.Fresh || p.Domain != was.Domain {
			t.Errorf("%s: %+v", platform, p)
		}
	}
}

// TestNoDomain: a Machine in none of the set's failure domains is compared with nothing: the plan replaces it for its place.
func TestNoDomain(t *testing.T) {
	for platform, move := range map[string]func(spec map[string]any){
		// Of before there were failure domains.
		"VSphere": func(spec map[string]any) {
			spec["workspace"] = map[string]any{"datacenter": "d", "datastore": "/d/datastore/old", "folder": "/d/vm/", "resourcePool": "/d/host/a/Resources", "server": "s"}
		},
		"Nutanix": func(spec map[string]any) {
			delete(spec, "failureDomain")
			spec["cluster"] = map[string]any{"type": "uuid", "uuid": "pe-old"}
		},
		"AWS":       func(spec map[string]any) { spec["placement"] = map[string]any{"region": "r", "availabilityZone": "z"} },
		"Azure":     func(spec map[string]any) { spec["zone"] = "z" },
		"GCP":       func(spec map[string]any) { spec["zone"] = "z" },
		"OpenStack": func(spec map[string]any) { spec["availabilityZone"] = "z" },
	} {
		s, infra := set(t, platform), cluster(t)
		m := created(t, s, infra, tried(t, s, infra), move)
		got := Read(s, []machinev1beta1.Machine{*m}, infra, tried(t, s, infra))
		p := got.Places["uid"]
		for _, d := range got.Domains {
			if p.Domain == d {
				t.Errorf("%s: it is in %s", platform, d)
			}
		}
		if p.Domain == "" || p.Unclear != "" || p.Fresh {
			t.Errorf("%s: %+v", platform, p)
		}
	}
}

// TestNoWorkspace: vSphere's template may leave out what the failure domains say.
func TestNoWorkspace(t *testing.T) {
	s, infra := set(t, "VSphere"), cluster(t)
	of := s.Spec.Template.OpenShiftMachineV1Beta1Machine
	leave := &machinev1beta1.Machine{Spec: of.Spec}
	edited(t, leave, func(spec map[string]any) {
		for _, field := range []string{"workspace", "template", "network"} {
			delete(spec, field)
		}
	})
	of.Spec = leave.Spec
	if why := Read(s, nil, infra, Trial{}).Unusable; why != "" {
		t.Fatal(why)
	}
	m := created(t, s, infra, tried(t, s, infra))
	if raw := string(m.Spec.ProviderSpec.Value.Raw); !strings.Contains(raw, `"datastore":"/d/datastore/s"`) || !strings.Contains(raw, "net-a") {
		t.Errorf("it is created as %s", raw)
	}
	if p := placeOf(s, m, infra, tried(t, s, infra)); p.Outdated != "" || p.Unclear != "" || p.Domain != "VSphereFailureDomain{Name:a}" {
		t.Errorf("%+v", p)
	}
}

// TestNoResourcePool: where the library finds no failure domain in a provider spec, the set finds it by all that is in it.
func TestNoResourcePool(t *testing.T) {
	s, infra := set(t, "VSphere"), cluster(t)
	for i := range infra.Spec.PlatformSpec.VSphere.FailureDomains {
		infra.Spec.PlatformSpec.VSphere.FailureDomains[i].Topology.ResourcePool = ""
	}
	trial := tried(t, s, infra)
	for _, domain := range Read(s, nil, infra, trial).Domains {
		m, err := NewMachine(s, infra, trial, machineset.Create{Domain: domain}, "x4k2p")
		if err != nil {
			t.Fatal(err)
		}
		m.UID = "uid"
		if p := placeOf(s, m, infra, trial); p.Domain != domain || p.Outdated != "" || !p.Fresh {
			t.Errorf("in %s: %+v", domain, p)
		}
	}
}
