// Package cpms_test records what the platform's control plane machine set operator makes of sets and Machines.
package cpms_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/openshift/cluster-control-plane-machine-set-operator/pkg/controllers/controlplanemachinesetgenerator"
	provider "github.com/openshift/cluster-control-plane-machine-set-operator/pkg/machineproviders/providers/openshift/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var update = flag.Bool("update", false, "write the recording anew")

const (
	recording = "../../internal/cpms/testdata/platform.json"
	namespace = "openshift-machine-api"
)

// recorded is one case: objects, and the platform's answers about them.
type recorded struct {
	Name           string
	Set            *machinev1.ControlPlaneMachineSet
	Infrastructure *configv1.Infrastructure
	Machines       []machinev1beta1.Machine
	Fills          json.RawMessage // what webhooks fill into a provider spec, as a merge patch
	Answers        []answer
}

// answer is what the platform's operator says of one Machine, and the provider spec of the one that it creates in its place.
type answer struct {
	Machine     string
	Index       int32
	NeedsUpdate bool
	Successor   json.RawMessage
}

// platform is a control plane on one platform: Machines as the installer makes them, and what the cluster has beside.
type platform struct {
	name     configv1.PlatformType
	machines [3]string                      // provider specs
	size     string                         // a merge patch for another size
	away     string                         // a merge patch that moves a Machine out of every failure domain
	infra    func(*configv1.Infrastructure) // what a person changes about a failure domain; nil where Infrastructure has none
}

const fills = `{"credentialsSecret":{"name":"cloud-credentials"},"userDataSecret":{"name":"master-user-data"}}`

func spec(s, more string) string {
	out, err := jsonpatch.MergePatch([]byte(s), []byte(more))
	if err != nil {
		panic(err)
	}
	return string(out)
}

func platforms() []platform {
	const aws = `{"kind":"AWSMachineProviderConfig","apiVersion":"machine.openshift.io/v1beta1","instanceType":"m6i.xlarge","ami":{"id":"ami-1"},"placement":{"region":"r"},"deviceIndex":0}`
	const azure = `{"kind":"AzureMachineProviderSpec","apiVersion":"machine.openshift.io/v1beta1","vmSize":"Standard_D8s_v3","vnet":"demo-vnet","subnet":"demo-master-subnet","location":"l","image":{"resourceID":"image"},"osDisk":{"diskSizeGB":128,"managedDisk":{"storageAccountType":"Premium_LRS"},"osType":"Linux"},"publicIP":false}`
	const gcp = `{"kind":"GCPMachineProviderSpec","apiVersion":"machine.openshift.io/v1beta1","machineType":"n2-standard-4","region":"r","projectID":"p","canIPForward":false,"deletionProtection":false,"serviceAccounts":null,"networkInterfaces":[{"network":"n","subnetwork":"s"}]}`
	const openstack = `{"kind":"OpenstackProviderSpec","apiVersion":"machine.openshift.io/v1alpha1","flavor":"m1.xlarge","image":"rhcos","cloudName":"openstack","cloudsSecret":{"name":"openstack-cloud-credentials"},"rootVolume":{"diskSize":100,"volumeType":"ssd"}}`
	const vsphere = `{"kind":"VSphereMachineProviderSpec","apiVersion":"machine.openshift.io/v1beta1","numCPUs":4,"memoryMiB":16384,"diskGiB":120,"snapshot":""}`
	const nutanix = `{"kind":"NutanixMachineProviderConfig","apiVersion":"machine.openshift.io/v1","vcpusPerSocket":1,"vcpuSockets":4,"memorySize":"16Gi","systemDiskSize":"120Gi","image":{"type":"name","name":"rhcos"},"bootType":"","categories":null}`
	in := func(s, a, b, c string) [3]string { return [3]string{spec(s, a), spec(s, b), spec(s, c)} }
	at := func(d string) string {
		return `{"template":"tmpl-` + d + `","network":{"devices":[{"networkName":"net-` + d + `"}]},"workspace":{"datacenter":"d","datastore":"/d/datastore/s","folder":"/d/vm/demo","resourcePool":"/d/host/` + d + `/Resources","server":"s"}}`
	}
	pe := func(d string) string {
		return `{"failureDomain":{"name":"` + d + `"},"cluster":{"type":"uuid","uuid":"pe-` + d + `"},"subnets":[{"type":"uuid","uuid":"subnet-` + d + `"}]}`
	}
	return []platform{
		{"AWS", in(aws, `{"placement":{"availabilityZone":"a"},"subnet":{"id":"subnet-a"}}`, `{"placement":{"availabilityZone":"b"},"subnet":{"id":"subnet-b"}}`, `{"placement":{"availabilityZone":"c"},"subnet":{"id":"subnet-c"}}`),
			`{"instanceType":"m6i.2xlarge"}`, `{"placement":{"availabilityZone":"z"},"subnet":{"id":"subnet-z"}}`, nil},
		{"Azure", in(azure, `{"zone":"1"}`, `{"zone":"2"}`, `{"zone":"3"}`), `{"vmSize":"Standard_D16s_v3"}`, `{"zone":"9"}`, nil},
		{"GCP", in(gcp, `{"zone":"a"}`, `{"zone":"b"}`, `{"zone":"c"}`), `{"machineType":"n2-standard-8"}`, `{"zone":"z"}`, nil},
		{"OpenStack", in(openstack, `{"availabilityZone":"a"}`, `{"availabilityZone":"b"}`, `{"availabilityZone":"c"}`), `{"flavor":"m1.2xlarge"}`, `{"availabilityZone":"z"}`, nil},
		{"VSphere", in(vsphere, at("a"), at("b"), at("c")), `{"numCPUs":8}`, `{"workspace":{"datastore":"/d/datastore/old"}}`, func(i *configv1.Infrastructure) {
			i.Spec.PlatformSpec.VSphere.FailureDomains[0].Topology.Template = "tmpl-new"
		}},
		{"Nutanix", in(nutanix, pe("a"), pe("b"), pe("c")), `{"vcpuSockets":8}`, `{"failureDomain":null,"cluster":{"uuid":"pe-old"}}`, func(i *configv1.Infrastructure) {
			i.Spec.PlatformSpec.Nutanix.FailureDomains[0].Subnets[0].UUID = ptr("subnet-new")
		}},
	}
}

func ptr[T any](v T) *T { return &v }

func infrastructure(of configv1.PlatformType) *configv1.Infrastructure {
	i := &configv1.Infrastructure{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	i.Status = configv1.InfrastructureStatus{InfrastructureName: "demo", PlatformStatus: &configv1.PlatformStatus{Type: of}}
	i.Spec.PlatformSpec.Type = of
	for _, d := range []string{"a", "b", "c"} {
		switch of {
		case configv1.VSpherePlatformType:
			if i.Spec.PlatformSpec.VSphere == nil {
				i.Spec.PlatformSpec.VSphere = &configv1.VSpherePlatformSpec{}
			}
			i.Spec.PlatformSpec.VSphere.FailureDomains = append(i.Spec.PlatformSpec.VSphere.FailureDomains, configv1.VSpherePlatformFailureDomainSpec{
				Name: d, Region: "r", Zone: d, Server: "s", Topology: configv1.VSpherePlatformTopology{
					Datacenter: "d", ComputeCluster: "/d/host/" + d, Datastore: "/d/datastore/s", Folder: "/d/vm/demo", ResourcePool: "/d/host/" + d + "/Resources",
					Networks: []string{"net-" + d}, Template: "tmpl-" + d,
				},
			})
		case configv1.NutanixPlatformType:
			if i.Spec.PlatformSpec.Nutanix == nil {
				i.Spec.PlatformSpec.Nutanix = &configv1.NutanixPlatformSpec{}
			}
			i.Spec.PlatformSpec.Nutanix.FailureDomains = append(i.Spec.PlatformSpec.Nutanix.FailureDomains, configv1.NutanixFailureDomain{
				Name: d, Cluster: configv1.NutanixResourceIdentifier{Type: configv1.NutanixIdentifierUUID, UUID: ptr("pe-" + d)},
				Subnets: []configv1.NutanixResourceIdentifier{{Type: configv1.NutanixIdentifierUUID, UUID: ptr("subnet-" + d)}},
			})
		}
	}
	return i
}

func (p *platform) controlPlane(name func(int) string) []machinev1beta1.Machine {
	var out []machinev1beta1.Machine
	for i, raw := range p.machines {
		out = append(out, machinev1beta1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name(i), UID: types.UID("uid-" + "012"[i:i+1]), Labels: map[string]string{
				"machine.openshift.io/cluster-api-cluster": "demo", "machine.openshift.io/cluster-api-machine-role": "master", "machine.openshift.io/cluster-api-machine-type": "master",
			}},
			Spec: machinev1beta1.MachineSpec{ProviderSpec: machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{Raw: []byte(spec(raw, fills))}}},
		})
	}
	return out
}

func edit(v *runtime.RawExtension, patch string) { v.Raw = []byte(spec(string(v.Raw), patch)) }

// TestRecording holds the recording against the platform's operator.
func TestRecording(t *testing.T) {
	var all []recorded
	for _, p := range platforms() {
		template := func(s *machinev1.ControlPlaneMachineSet) *runtime.RawExtension {
			return s.Spec.Template.OpenShiftMachineV1Beta1Machine.Spec.ProviderSpec.Value
		}
		indexed := func(i int) string { return "demo-master-" + "012"[i:i+1] }
		for _, c := range []struct {
			name string
			call func(int) string
			edit func(*recorded)
		}{
			{"as generated", indexed, nil},
			{"secrets left out", indexed, func(r *recorded) { edit(template(r.Set), `{"credentialsSecret":null,"userDataSecret":null}`) }},
			{"another size", indexed, func(r *recorded) { edit(template(r.Set), p.size) }},
			{"no failure domains in the set", indexed, func(r *recorded) {
				of := r.Set.Spec.Template.OpenShiftMachineV1Beta1Machine
				of.FailureDomains, of.Spec.ProviderSpec.Value = nil, r.Machines[0].Spec.ProviderSpec.Value.DeepCopy()
			}},
			{"a Machine outside", indexed, func(r *recorded) { edit(r.Machines[1].Spec.ProviderSpec.Value, p.away) }},
			{"Infrastructure changed", indexed, func(r *recorded) { p.infra(r.Infrastructure) }},
			{"names without a number", func(i int) string { return "master-" + "xyz"[i:i+1] }, nil},
		} {
			if c.name == "Infrastructure changed" && p.infra == nil {
				continue
			}
			r := recorded{Name: string(p.name) + ": " + c.name, Infrastructure: infrastructure(p.name), Machines: p.controlPlane(c.call), Fills: json.RawMessage(fills)}
			r.Set = generated(t, &r)
			if c.edit != nil {
				c.edit(&r)
			}
			r.Answers = answers(t, &r)
			all = append(all, r)
		}
	}
	var got bytes.Buffer // a line for each case
	for i, r := range all {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var ordered any // a merge patch writes its keys in any order
		if err := json.Unmarshal(line, &ordered); err != nil {
			t.Fatal(err)
		}
		if line, err = json.Marshal(ordered); err != nil {
			t.Fatal(err)
		}
		got.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0])
		got.Write(line)
	}
	got.WriteString("\n]\n")
	if *update {
		if err := os.WriteFile(recording, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(recording); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the platform's operator answers otherwise than recorded (-update writes it anew): %v", err)
	}
}

// TestSuccessors: of a Machine that Holdfast creates the platform's operator says that it is as the set says, so that a set can be given back
// without a replacement.
func TestSuccessors(t *testing.T) {
	var all []recorded
	var successors map[string][]machinev1beta1.Machine
	for file, into := range map[string]any{recording: &all, "../../internal/cpms/testdata/successors.jsonl": &successors} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for d := json.NewDecoder(bytes.NewReader(raw)); d.More(); {
			if err := d.Decode(into); err != nil { // of a map: adds to it
				t.Fatal(err)
			}
		}
	}
	for i := range all {
		r := &all[i]
		t.Run(r.Name, func(t *testing.T) {
			if r.Machines = successors[r.Name]; len(r.Machines) == 0 {
				t.Fatal("Holdfast creates none")
			}
			c := api(t, r, r.Set.DeepCopy())
			p, err := provider.NewMachineProvider(t.Context(), logr.Discard(), c, record.NewFakeRecorder(100), r.Set.DeepCopy(), provider.OpenshiftMachineProviderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			infos, err := p.GetMachineInfos(t.Context(), logr.Discard())
			if err != nil {
				t.Fatal(err)
			}
			if len(infos) != len(r.Machines) {
				t.Errorf("%d of %d Machines are the set's", len(infos), len(r.Machines))
			}
			for _, info := range infos {
				if info.NeedsUpdate {
					t.Errorf("%s needs an update: %v", info.MachineRef.ObjectMeta.Name, info.Diff)
				}
			}
		})
	}
}

// api has the objects. What is created is filled in as webhooks do.
func api(t *testing.T, r *recorded, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, configv1.Install, machinev1.Install, machinev1beta1.Install} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects = append(objects, r.Infrastructure.DeepCopy())
	for i := range r.Machines {
		objects = append(objects, r.Machines[i].DeepCopy())
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if m, ok := o.(*machinev1beta1.Machine); ok {
				edit(m.Spec.ProviderSpec.Value, string(r.Fills))
			}
			return c.Create(ctx, o, options...)
		},
	}).Build()
}

// generated is the set that the platform's generator writes for Machines, activated.
func generated(t *testing.T, r *recorded) *machinev1.ControlPlaneMachineSet {
	t.Helper()
	c := api(t, r)
	g := &controlplanemachinesetgenerator.ControlPlaneMachineSetGeneratorReconciler{Client: c, APIReader: c, Scheme: c.Scheme(), Namespace: namespace}
	key := client.ObjectKey{Namespace: namespace, Name: "cluster"}
	if _, err := g.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	set := &machinev1.ControlPlaneMachineSet{}
	if err := c.Get(t.Context(), key, set); err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	set.ResourceVersion, set.UID, set.Spec.State = "", "uid-of-the-set", machinev1.ControlPlaneMachineSetStateActive
	return set
}

func answers(t *testing.T, r *recorded) (out []answer) {
	t.Helper()
	c := api(t, r, r.Set.DeepCopy())
	p, err := provider.NewMachineProvider(t.Context(), logr.Discard(), c, record.NewFakeRecorder(100), r.Set.DeepCopy(), provider.OpenshiftMachineProviderOptions{})
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	infos, err := p.GetMachineInfos(t.Context(), logr.Discard())
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	for _, info := range infos {
		a := answer{Machine: info.MachineRef.ObjectMeta.Name, Index: info.Index, NeedsUpdate: info.NeedsUpdate}
		if err := p.CreateMachine(t.Context(), logr.Discard(), info.Index); err != nil {
			t.Fatalf("%s: %v", r.Name, err)
		}
		var machines machinev1beta1.MachineList
		if err := c.List(t.Context(), &machines); err != nil {
			t.Fatal(err)
		}
		for i := range machines.Items {
			if m := &machines.Items[i]; m.UID == "" {
				a.Successor = m.Spec.ProviderSpec.Value.Raw
				if err := c.Delete(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
		}
		out = append(out, a)
	}
	return out
}
