package cpms

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// platforms are a template's failure domains and provider spec on each platform, both in YAML. Every provider spec has a field that the
// library does not know.
func platforms() map[string][2]string {
	return map[string][2]string{
		"AWS": {`
platform: AWS
aws:
- placement: {availabilityZone: a}
  subnet: {type: ID, id: subnet-a}
- placement: {availabilityZone: b}
  subnet: {type: ID, id: subnet-b}
`, `
kind: AWSMachineProviderConfig
apiVersion: machine.openshift.io/v1beta1
instanceType: m6i.xlarge
placement: {region: r}
subnet: {id: none}
new: {field: kept}
`},
		"Azure": {`
platform: Azure
azure: [{zone: "1"}, {zone: "2"}]
`, `
kind: AzureMachineProviderSpec
apiVersion: machine.openshift.io/v1beta1
vmSize: Standard_D8s_v3
subnet: masters
new: {field: kept}
`},
		"GCP": {`
platform: GCP
gcp: [{zone: a}, {zone: b}]
`, `
kind: GCPMachineProviderSpec
apiVersion: machine.openshift.io/v1beta1
machineType: n2-standard-4
region: r
zone: ""
new: {field: kept}
`},
		"OpenStack": {`
platform: OpenStack
openstack: [{availabilityZone: a}, {availabilityZone: b}]
`, `
kind: OpenstackProviderSpec
apiVersion: machine.openshift.io/v1alpha1
flavor: m1.xlarge
rootVolume: {diskSize: 100, volumeType: ssd}
new: {field: kept}
`},
		"VSphere": {`
platform: VSphere
vsphere: [{name: a}, {name: b}]
`, `
kind: VSphereMachineProviderSpec
apiVersion: machine.openshift.io/v1beta1
numCPUs: 4
template: ""
network: {devices: [{networkName: ""}]}
workspace: {}
new: {field: kept}
`},
		"Nutanix": {`
platform: Nutanix
nutanix: [{name: a}, {name: b}]
`, `
kind: NutanixMachineProviderConfig
apiVersion: machine.openshift.io/v1
vcpusPerSocket: 1
vcpuSockets: 4
memorySize: 16Gi
cluster: {type: uuid, uuid: none}
subnets: [{type: uuid, uuid: none}]
new: {field: kept}
`},
		"none that the library knows": {"", `
kind: ProcessProviderSpec
apiVersion: example.com/v1
size: small
new: {field: kept}
`},
	}
}

// cluster is the Infrastructure, where two platforms keep their failure domains.
func cluster(t *testing.T) *configv1.Infrastructure {
	t.Helper()
	infra := &configv1.Infrastructure{}
	parse(t, `
spec:
  platformSpec:
    type: VSphere
    vsphere:
      failureDomains:
      - {name: a, region: r, zone: a, server: s, topology: {datacenter: d, datastore: /d/datastore/s, computeCluster: /d/host/a, resourcePool: /d/host/a/Resources, networks: [net-a], template: tmpl-a}}
      - {name: b, region: r, zone: b, server: s, topology: {datacenter: d, datastore: /d/datastore/s, computeCluster: /d/host/b, resourcePool: /d/host/b/Resources, networks: [net-b], template: tmpl-b}}
    nutanix:
      failureDomains:
      - {name: a, cluster: {type: UUID, uuid: pe-a}, subnets: [{type: UUID, uuid: subnet-a}]}
      - {name: b, cluster: {type: UUID, uuid: pe-b}, subnets: [{type: UUID, uuid: subnet-b}]}
`, infra)
	return infra
}

func parse(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

// set is a set of a platform's Machines.
func set(t *testing.T, platform string) *machinev1.ControlPlaneMachineSet {
	t.Helper()
	text := platforms()[platform]
	s := &machinev1.ControlPlaneMachineSet{}
	parse(t, `
metadata: {name: cluster, namespace: openshift-machine-api, uid: uid-of-the-set}
spec:
  state: Active
  replicas: 3
  strategy: {type: RollingUpdate}
  selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: {machine.openshift.io/cluster-api-cluster: demo, machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
`, s)
	of := s.Spec.Template.OpenShiftMachineV1Beta1Machine
	raw, err := yaml.YAMLToJSON([]byte(text[1]))
	if err != nil {
		t.Fatal(err)
	}
	of.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
	if text[0] != "" {
		of.FailureDomains = &machinev1.FailureDomains{}
		parse(t, text[0], of.FailureDomains)
	}
	return s
}

// tried is what an API server without webhooks makes of a set's Machines; with those of edits, what it makes of each provider spec.
func tried(t *testing.T, s *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure, edits ...func(spec map[string]any)) Trial {
	t.Helper()
	machines, err := Trials(s, infra)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		edited(t, m, edits...)
	}
	return Trial{Machines: machines}
}

// edited changes a Machine's provider spec.
func edited(t *testing.T, m *machinev1beta1.Machine, edits ...func(spec map[string]any)) {
	t.Helper()
	spec := map[string]any{}
	if err := json.Unmarshal(m.Spec.ProviderSpec.Value.Raw, &spec); err != nil {
		t.Fatal(err)
	}
	for _, edit := range edits {
		edit(spec)
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
}

// TestRoundTrip: on every platform, the set reads a Machine that it has created as what it created: as the template says, with that index,
// in that failure domain. Nothing of the template is lost.
func TestRoundTrip(t *testing.T) {
	for platform := range platforms() {
		t.Run(platform, func(t *testing.T) {
			s := set(t, platform)
			domains := []string{""}
			if platforms()[platform][0] != "" {
				if domains = Read(s, nil, cluster(t), Trial{}).Domains; len(domains) != 2 {
					t.Fatalf("failure domains: %v", domains)
				}
			}
			seen := map[string]bool{}
			for i, domain := range domains {
				m, err := NewMachine(s, cluster(t), tried(t, s, cluster(t)), machineset.Create{Index: i, Domain: domain}, "x4k2p")
				if err != nil {
					t.Fatal(err)
				}
				m.UID = "uid"
				raw := string(m.Spec.ProviderSpec.Value.Raw)
				if !strings.Contains(raw, `"new":{"field":"kept"}`) {
					t.Errorf("something of the template is lost: %s", raw)
				}
				if seen[raw] {
					t.Errorf("two failure domains have one provider spec: %s", raw)
				}
				seen[raw] = true
				got := Read(s, []machinev1beta1.Machine{*m}, cluster(t), tried(t, s, cluster(t)))
				if got.Unusable != "" {
					t.Fatal(got.Unusable)
				}
				want := machineset.Place{Selected: true, Index: &i, Domain: domain, Fresh: true}
				if p := got.Places["uid"]; fmt.Sprint(p.Selected, *p.Index, p.Domain, p.Outdated, p.Fresh, p.Unclear) != fmt.Sprint(want.Selected, i, want.Domain, want.Outdated, want.Fresh, want.Unclear) {
					t.Errorf("it is read as %+v", p)
				}
				if m.Name != fmt.Sprintf("demo-master-x4k2p-%d", i) || !metav1.IsControlledBy(m, s) {
					t.Errorf("Machine %s of %v", m.Name, m.OwnerReferences)
				}
			}
		})
	}
}

// TestPrefix: a new Machine's name begins with the prefix of now, also once that is taken away again. By its name no Machine is replaced.
func TestPrefix(t *testing.T) {
	var machines []machinev1beta1.Machine
	for i, prefix := range []string{"master-prefix", ""} {
		s := set(t, "AWS")
		s.Spec.MachineNamePrefix = prefix
		trial := tried(t, s, nil)
		m, err := NewMachine(s, nil, trial, machineset.Create{Index: 1, Domain: Read(s, nil, nil, Trial{}).Domains[0]}, "x4k2p")
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"master-prefix-x4k2p-1", "demo-master-x4k2p-1"}[i]; m.Name != want {
			t.Errorf("with prefix %q it is called %s, want %s", prefix, m.Name, want)
		}
		m.UID = types.UID(m.Name)
		machines = append(machines, *m)
		got := Read(s, machines, nil, trial)
		for _, m := range machines {
			if p := got.Places[string(m.UID)]; p.Index == nil || *p.Index != 1 || p.Outdated != "" || p.Unclear != "" {
				t.Errorf("with prefix %q Machine %s is %+v", prefix, m.Name, p)
			}
		}
	}
}

// TestOutdated: what differs from the template is named; another failure domain is no difference.
func TestOutdated(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(spec map[string]any)
		want string
	}{
		"as it is":               {func(map[string]any) {}, ""},
		"another failure domain": {func(spec map[string]any) { spec["placement"] = map[string]any{"region": "r", "availabilityZone": "b"} }, ""},
		"another size":           {func(spec map[string]any) { spec["instanceType"] = "m6i.large" }, "InstanceType: m6i.large != m6i.xlarge"},
		"another platform":       {func(spec map[string]any) { spec["kind"] = "GCPMachineProviderSpec" }, "its platform is GCP, not AWS"},
	} {
		s := set(t, "AWS")
		m, err := NewMachine(s, nil, tried(t, s, nil), machineset.Create{Index: 0, Domain: Read(s, nil, nil, Trial{}).Domains[0]}, "x4k2p")
		if err != nil {
			t.Fatal(err)
		}
		edited(t, m, c.edit)
		if p := Read(s, []machinev1beta1.Machine{*m}, nil, tried(t, s, nil)).Places[""]; p.Outdated != c.want || p.Unclear != "" {
			t.Errorf("%s: outdated %q, unclear %q; want %q", name, p.Outdated, p.Unclear, c.want)
		}
	}
}

// TestUnusable: a set that cannot be acted by says why, and one Machine that cannot be read is unclear by itself.
func TestUnusable(t *testing.T) {
	for want, edit := range map[string]func(s *machinev1.ControlPlaneMachineSet){
		"":                            func(*machinev1.ControlPlaneMachineSet) {},
		`its name is "other"`:         func(s *machinev1.ControlPlaneMachineSet) { s.Name = "other" },
		"spec.replicas is 4":          func(s *machinev1.ControlPlaneMachineSet) { *s.Spec.Replicas = 4 },
		"spec.replicas is 0":          func(s *machinev1.ControlPlaneMachineSet) { *s.Spec.Replicas = 0 },
		"spec.replicas is 9":          func(s *machinev1.ControlPlaneMachineSet) { *s.Spec.Replicas = 9 },
		`strategy.type is "Recreate"`: func(s *machinev1.ControlPlaneMachineSet) { s.Spec.Strategy.Type = "Recreate" },
		"selects every Machine":       func(s *machinev1.ControlPlaneMachineSet) { s.Spec.Selector = metav1.LabelSelector{} },
		"selects other Machines than the control plane's": func(s *machinev1.ControlPlaneMachineSet) {
			s.Spec.Selector.MatchLabels = map[string]string{machinev1beta1.MachineClusterIDLabel: "demo"}
		},
		"does not select what the template creates": func(s *machinev1.ControlPlaneMachineSet) { s.Spec.Selector.MatchLabels["a"] = "b" },
		"are to say master": func(s *machinev1.ControlPlaneMachineSet) {
			delete(s.Spec.Selector.MatchLabels, quorum.RoleLabel)
			s.Spec.Template.OpenShiftMachineV1Beta1Machine.ObjectMeta.Labels[quorum.RoleLabel] = "worker"
		},
		"spec.template.machineType": func(s *machinev1.ControlPlaneMachineSet) { s.Spec.Template.OpenShiftMachineV1Beta1Machine = nil },
		"providerSpec: there is none": func(s *machinev1.ControlPlaneMachineSet) {
			s.Spec.Template.OpenShiftMachineV1Beta1Machine.Spec.ProviderSpec.Value = nil
		},
		"the failure domains are those of Azure": func(s *machinev1.ControlPlaneMachineSet) {
			s.Spec.Template.OpenShiftMachineV1Beta1Machine.FailureDomains = &machinev1.FailureDomains{
				Platform: configv1.AzurePlatformType, Azure: &[]machinev1.AzureFailureDomain{{Zone: "1"}}}
		},
		"is listed twice": func(s *machinev1.ControlPlaneMachineSet) {
			domains := s.Spec.Template.OpenShiftMachineV1Beta1Machine.FailureDomains
			*domains.AWS = append(*domains.AWS, (*domains.AWS)[0])
		},
	} {
		s := set(t, "AWS")
		edit(s)
		if got := Read(s, nil, nil, Trial{}).Unusable; want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	if got := Read(set(t, "VSphere"), nil, nil, Trial{}).Unusable; !strings.Contains(got, "not defined in the infrastructure resource") {
		t.Errorf("without the Infrastructure it says %q", got)
	}
	bad := machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m-0", UID: "bad"}}
	if got := Read(set(t, "Nutanix"), nil, nil, Trial{}).Unusable; !strings.Contains(got, "the platform's library cannot read it") {
		t.Errorf("where the library panics it says %q", got)
	}
	good := machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m-x", UID: "good"}, Spec: set(t, "AWS").Spec.Template.OpenShiftMachineV1Beta1Machine.Spec}
	got := Read(set(t, "AWS"), []machinev1beta1.Machine{bad, good}, nil, tried(t, set(t, "AWS"), nil))
	if got.Unusable != "" || got.Places["bad"].Unclear == "" || got.Places["good"].Unclear != "" || got.Places["good"].Index != nil {
		t.Errorf("%+v", got)
	}
}

// TestUnknownPlatform: on a platform that the library does not know, the fields that differ are named as well.
func TestUnknownPlatform(t *testing.T) {
	s := set(t, "none that the library knows")
	m, err := NewMachine(s, nil, tried(t, s, nil), machineset.Create{}, "x4k2p")
	if err != nil {
		t.Fatal(err)
	}
	m.Spec.ProviderSpec.Value.Raw = []byte(`{"kind":"ProcessProviderSpec","apiVersion":"example.com/v1","size":"large","new":{"other":[1]}}`)
	const want = "new.field: none != kept; new.other: [1] != none; size: large != small"
	if p := Read(s, []machinev1beta1.Machine{*m}, nil, tried(t, s, nil)).Places[""]; p.Outdated != want {
		t.Errorf("outdated %q, want %q", p.Outdated, want)
	}
}

// TestCheck: before a set is stored, it is held to what it is to be acted by, and to the platform that it had.
func TestCheck(t *testing.T) {
	stored := set(t, "AWS")
	machines, err := Check(nil, stored, nil)
	if err != nil || len(machines) != 2 {
		t.Fatalf("%d Machines to try, %v", len(machines), err)
	}
	for i, zone := range []string{`"availabilityZone":"a"`, `"availabilityZone":"b"`} {
		if m := machines[i]; !strings.Contains(string(m.Spec.ProviderSpec.Value.Raw), zone) || len(m.OwnerReferences) > 0 {
			t.Errorf("Machine %d to try is %s, of %v", i, m.Spec.ProviderSpec.Value.Raw, m.OwnerReferences)
		}
	}
	if machines, err := Check(stored, set(t, "none that the library knows"), nil); err == nil || !strings.Contains(err.Error(), "its platform was AWS and is now") {
		t.Errorf("%v, %v", machines, err)
	}
	named := func(prefix string) *machinev1.ControlPlaneMachineSet {
		s := set(t, "AWS")
		s.Spec.MachineNamePrefix = prefix
		return s
	}
	long := strings.Repeat("a", 55)
	for prefix, want := range map[string]string{long: "at most 54 characters", "My_Prefix": `begin with "My_Prefix"`} {
		if _, err := Check(stored, named(prefix), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("prefix %s: %v", prefix, err)
		}
	}
	if _, err := Check(named(long), named(long), nil); err != nil {
		t.Errorf("a set that has such names already: %v", err)
	}
	unreadable := set(t, "AWS")
	unreadable.Spec.Template.OpenShiftMachineV1Beta1Machine = nil
	if _, err := Check(unreadable, stored, nil); err != nil {
		t.Errorf("what could not be read is mended, and refused: %v", err)
	}
	if _, err := Check(stored, unreadable, nil); err == nil {
		t.Error("a set without a template passes")
	}
}

// TestAutoRepair: only the annotation's one value switches the health check off.
func TestAutoRepair(t *testing.T) {
	for value, want := range map[string]bool{"": true, "true": true, "no": true, "false": false} {
		s := set(t, "AWS")
		if value != "" {
			s.Annotations = map[string]string{AutoRepairAnnotation: value}
		}
		if got := Read(s, nil, nil, Trial{}).AutoRepair; got != want {
			t.Errorf("with %q a health check is kept: %t", value, got)
		}
	}
}

// TestSaid: what a Machine's status says is wrong, in one line.
func TestSaid(t *testing.T) {
	for want, status := range map[string]machinev1beta1.MachineStatus{
		"":                                   {},
		"no such type\nin this zone":         {ErrorMessage: new("no such type\nin this zone")},
		"InvalidConfiguration":               {ErrorReason: new(machinev1beta1.InvalidConfigurationMachineError)},
		"InvalidConfiguration: no such type": {ErrorReason: new(machinev1beta1.InvalidConfigurationMachineError), ErrorMessage: new("no such type")},
	} {
		m := machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m-0", UID: "uid"}, Status: status}
		if got := Read(set(t, "AWS"), []machinev1beta1.Machine{m}, nil, Trial{}).Places["uid"].Error; got != strings.ReplaceAll(want, "\n", " ") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
