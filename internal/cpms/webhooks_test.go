package cpms

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// awsMaster is the provider spec that the installer gives a master on AWS, without its place.
const awsMaster = `
kind: AWSMachineProviderConfig
apiVersion: machine.openshift.io/v1beta1
metadata: {creationTimestamp: null}
ami: {id: ami-1}
blockDevices: [{ebs: {volumeSize: 120, volumeType: gp3, iops: 0, encrypted: true, kmsKey: {arn: ""}}}]
capacityReservationId: ""
credentialsSecret: {name: aws-cloud-credentials}
deviceIndex: 0
iamInstanceProfile: {id: demo-master-profile}
instanceType: m6i.xlarge
loadBalancers: [{name: demo-int, type: network}]
metadataServiceOptions: {}
placement: {region: r}
securityGroups: [{filters: [{name: "tag:Name", values: [demo-node]}]}]
subnet: {}
tags: [{name: kubernetes.io/cluster/demo, value: owned}]
userDataSecret: {name: master-user-data}
`

// webhooksMade is what the platform's webhooks make of the Machines of one case in testdata/trials.jsonl. test/machineapi records it in
// testdata/defaulted.jsonl.
type webhooksMade struct {
	Name     string
	Machines []*machinev1beta1.Machine
	Refused  string // what the validating webhook says of the first that it refuses
}

// TestPlatformWebhooks: with what machine-api-operator's own webhooks make of the trial Machines on AWS, the installer's Machines are as a
// template says that leaves out what these webhooks fill in with the same, and the Machines that the set creates are, whatever is left out.
func TestPlatformWebhooks(t *testing.T) {
	const installed = "the installer's Machines"
	cases := []struct {
		name string
		edit func(spec map[string]any)
		want string // how the installer's Machines differ
	}{
		{"as the installer writes it", func(map[string]any) {}, ""},
		{"no credentialsSecret", func(spec map[string]any) { delete(spec, "credentialsSecret") }, ""},
		{"no region", func(spec map[string]any) { delete(spec, "placement") }, ""},
		{"nothing that is empty", func(spec map[string]any) {
			for _, key := range []string{"metadata", "capacityReservationId", "deviceIndex", "metadataServiceOptions", "subnet"} {
				delete(spec, key)
			}
		}, ""},
		{"a field that the webhooks do not know", func(spec map[string]any) { spec["new"] = "dropped" }, ""},
		{"no userDataSecret", func(spec map[string]any) { delete(spec, "userDataSecret") }, "UserDataSecret.Name: master-user-data != worker-user-data"},
		{"another size", func(spec map[string]any) { spec["instanceType"] = "m6i.2xlarge" }, "InstanceType: m6i.xlarge != m6i.2xlarge"},
		{"no image", func(spec map[string]any) { delete(spec, "ami") }, ""},
	}
	base, err := yaml.YAMLToJSON([]byte(awsMaster))
	if err != nil {
		t.Fatal(err)
	}
	lines := []webhooksMade{{Name: installed}}
	for i, zone := range []string{"a", "b"} {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: "openshift-machine-api", Name: "demo-master-" + "01"[i:i+1], UID: types.UID("uid-" + zone),
			Labels: set(t, "AWS").Spec.Template.OpenShiftMachineV1Beta1Machine.ObjectMeta.Labels,
		}}
		m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: base}
		edited(t, m, func(spec map[string]any) {
			spec["placement"] = map[string]any{"region": "r", "availabilityZone": zone}
			spec["subnet"] = map[string]any{"id": "subnet-" + zone}
		})
		lines[0].Machines = append(lines[0].Machines, m)
	}
	made := webhooksAnswers(t)
	for _, c := range cases {
		s := set(t, "AWS")
		of := s.Spec.Template.OpenShiftMachineV1Beta1Machine
		template := &machinev1beta1.Machine{}
		template.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: base}
		edited(t, template, c.edit)
		of.Spec = template.Spec
		trials, err := Trials(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, webhooksMade{Name: c.name, Machines: trials})
		t.Run(c.name, func(t *testing.T) {
			answer := made[c.name]
			if c.name == "no image" {
				if !strings.Contains(answer.Refused, "ami") {
					t.Errorf("it is refused by %q", answer.Refused)
				}
				return
			}
			if answer.Refused != "" || len(answer.Machines) != len(trials) {
				t.Fatalf("%d Machines, refused: %q", len(answer.Machines), answer.Refused)
			}
			trial := Trial{Machines: answer.Machines}
			for _, m := range made[installed].Machines {
				p := Read(s, []machinev1beta1.Machine{*m}, nil, trial).Places[string(m.UID)]
				if p.Outdated != c.want || p.Unclear != "" || !strings.Contains(p.Domain, "subnet-"+strings.TrimPrefix(string(m.UID), "uid-")) {
					t.Errorf("%s: %+v, want outdated %q", m.Name, p, c.want)
				}
			}
			for i, domain := range Read(s, nil, nil, trial).Domains {
				m, err := NewMachine(s, nil, trial, machineset.Create{Index: i, Domain: domain}, "x4k2p")
				if err != nil {
					t.Fatal(err)
				}
				k := slices.IndexFunc(trials, func(tried *machinev1beta1.Machine) bool {
					return bytes.Equal(tried.Spec.ProviderSpec.Value.Raw, m.Spec.ProviderSpec.Value.Raw)
				})
				if k < 0 {
					t.Fatalf("the Machine in %s was not tried", domain)
				}
				m.UID, m.Spec = "uid", answer.Machines[k].Spec
				if p := placeOf(s, m, nil, trial); p.Outdated != "" || p.Unclear != "" || !p.Fresh || p.Domain != domain {
					t.Errorf("the Machine that the set creates in %s: %+v", domain, p)
				}
			}
		})
	}
	var got bytes.Buffer
	for _, line := range lines {
		if err := json.NewEncoder(&got).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	const file = "testdata/trials.jsonl"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("Holdfast tries other Machines than %s has (-update writes it anew, then go test -run Defaulted -update in test/machineapi): %v", file, err)
	}
}

// webhooksAnswers are the recorded answers by the case's name.
func webhooksAnswers(t *testing.T) map[string]webhooksMade {
	t.Helper()
	raw, err := os.ReadFile("testdata/defaulted.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]webhooksMade{}
	for d := json.NewDecoder(bytes.NewReader(raw)); d.More(); {
		var one webhooksMade
		if err := d.Decode(&one); err != nil {
			t.Fatal(err)
		}
		answers[one.Name] = one
	}
	return answers
}
