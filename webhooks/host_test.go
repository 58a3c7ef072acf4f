package webhooks_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

// hostCRD is a BareMetalHost that takes any spec.
func hostCRD() *apiextensionsv1.CustomResourceDefinition {
	any := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "baremetalhosts.metal3.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "metal3.io", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "baremetalhosts", Singular: "baremetalhost", Kind: "BareMetalHost", ListKind: "BareMetalHostList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": any, "status": any},
				}},
			}},
		},
	}
}

// bareMetalHost is a provisioned host that a Machine of a namespace uses.
func bareMetalHost(t *testing.T, name, machine, of string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	must(t, json.Unmarshal([]byte(`{"apiVersion":"metal3.io/v1alpha1","kind":"BareMetalHost","metadata":{"name":"`+name+`","namespace":"`+namespace+`","finalizers":["example.com/stays"]},
		"spec":{"online":true,"externallyProvisioned":false,"bmc":{"address":"redfish://10.9.9.9"},"image":{"url":"http://image"},"customDeploy":{"method":"install_coreos"},
		"consumerRef":{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","name":"`+machine+`","namespace":"`+of+`"}}}`), u))
	return u
}

// TestBareMetalHost has the rule keep-host about BareMetalHosts, whose CRD comes after Holdfast.
func TestBareMetalHost(t *testing.T) {
	t.Parallel()
	f := start(t)
	must(t, apiextensionsv1.AddToScheme(f.scheme))
	must(t, f.direct.Create(t.Context(), hostCRD()))
	for name, of := range map[string][2]string{"master": {"cp-2", namespace}, "worker": {"worker", namespace}, "free": {"cp-2", "elsewhere"}} {
		gomega.NewWithT(t).Eventually(func() error {
			return client.IgnoreAlreadyExists(f.direct.Create(t.Context(), bareMetalHost(t, name, of[0], of[1])))
		}).WithTimeout(20 * time.Second).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
	}
	f.guard.set(ring())
	annotate := func(key string) string { return `{"metadata":{"annotations":{"` + key + `":""}}}` }
	requests := map[string]string{
		"deletion": "", "consumer": `{"spec":{"consumerRef":null}}`, "another consumer": `{"spec":{"consumerRef":{"name":"cp-3"}}}`, "image": `{"spec":{"image":null}}`,
		"deploy": `{"spec":{"customDeploy":{"method":"other"}}}`, "BMC": `{"spec":{"bmc":{"address":"redfish://10.9.9.8"}}}`, "provisioned": `{"spec":{"externallyProvisioned":true}}`,
		"detached": annotate("baremetalhost.metal3.io/detached"), "off": `{"spec":{"online":false}}`,
		"reboot": annotate("reboot.metal3.io"), "named reboot": annotate("reboot.metal3.io/capbm-requested-power-off"),
	}
	send := func(user, name, body string) error {
		c, o := f.client(t, user, nil), bareMetalHost(t, name, "", "")
		if body == "" {
			return c.Delete(t.Context(), o, client.DryRunAll)
		}
		return c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
	}
	off := func(name string) bool { return name == "off" || strings.Contains(name, "reboot") }
	expect := func(name, on string, cluster *quorum.Snapshot, user string, calls int, recorded ...string) {
		t.Helper()
		f.guard.set(cluster)
		err := send(user, on, requests[name])
		if denied := slices.Contains(recorded, "keep-host denied"); denied != (apierrors.IsForbidden(err) && strings.Contains(err.Error(), "Refused (keep-host): ")) || !denied && err != nil {
			t.Errorf("%s of %s by %s: %v", name, on, user, err)
		}
		if got := f.guard.findings(); !slices.Equal(got, recorded) || f.guard.total() != calls {
			t.Errorf("%s of %s by %s: recorded %q, want %q, in %d calls, want %d", name, on, user, got, recorded, f.guard.total(), calls)
		}
	}
	whole := func(changes ...func(*quorum.Snapshot)) *quorum.Snapshot {
		return ring(append(changes, func(s *quorum.Snapshot) { s.Machines = append(s.Machines, other("cp-1", address)) })...)
	}
	lifted := func(s *quorum.Snapshot) {
		s.Machines[0].Override, s.Machines[0].OverrideBy = "keep-host: the board is changed", quorum.Stamp(person, time.Now())
	}
	let := func(s *quorum.Snapshot) {
		s.Machines[0].DeletedAt, s.Machines[0].Hook, s.Machines[0].Latch = s.Now, quorum.EntryAbsent, quorum.EntryAbsent
	}
	without := func(s *quorum.Snapshot) { s.Ring.Members = slices.Delete(s.Ring.Members, 1, 2) }
	for name := range requests {
		for _, user := range []string{person, gitops, controllers} {
			expect(name, "master", whole(), user, 1, "keep-host denied")
			expect(name, "master", whole(unknown), user, 1, "keep-host denied")
			expect(name, "master", nil, user, 1, "keep-host denied")
			expect(name, "master", whole(let), user, 1)
			expect(name, "master", whole(without), user, 1)
			expect(name, "worker", whole(), user, 1)
			expect(name, "free", nil, user, 0)
		}
		expect(name, "master", whole(lifted), person, 1, "keep-host overridden")
		expect(name, "master", whole(lifted), controllers, 1, "keep-host denied")
		if off(name) {
			expect(name, "master", whole(restarting), controllers, 1)
			expect(name, "master", whole(sick(1)), controllers, 1, "keep-host allowed")
		} else {
			expect(name, "master", whole(restarting), controllers, 1, "keep-host denied")
			expect(name, "master", whole(sick(1)), controllers, 1, "keep-host denied")
		}
	}
	heartbeats := []string{annotate("example.com/other"), `{"metadata":{"labels":{"a":"b"}}}`, `{"spec":{"description":"x","userData":null}}`}
	for _, body := range heartbeats {
		f.guard.set(nil)
		if err := send(gitops, "master", body); err != nil || f.guard.total() != 0 {
			t.Errorf("%s: %v, %d calls", body, err, f.guard.total())
		}
	}
	f.server.CloseClientConnections()
	f.server.Close()
	for name, body := range requests {
		if err := send(person, "master", body); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), registrations.HomeWebhook) {
			t.Errorf("%s while Holdfast is down: %v", name, err)
		}
	}
	for _, body := range heartbeats {
		if err := send(gitops, "master", body); err != nil {
			t.Errorf("%s while Holdfast is down: %v", body, err)
		}
	}
}

// TestTwoHostsAtOnce has two hosts powered off at the same instant: etcd could bear either, and no look shows the other.
func TestTwoHostsAtOnce(t *testing.T) {
	t.Parallel()
	f := start(t)
	names := []string{"cp-2", "cp-3"}
	for i, name := range names {
		m := f.machine(t, name, state{naked: true})
		m.Status.Addresses[0].Address = fmt.Sprintf("10.0.0.%d", i+2)
		must(t, f.direct.Status().Update(t.Context(), m))
		f.caughtUp(t, m)
	}
	f.guard.set(ring(func(s *quorum.Snapshot) { s.Machines = append(s.Machines, other("cp-1", address)) }))
	looks := make(chan int)
	f.guard.slow = func(look int) { // two at a time
		select {
		case looks <- look:
		case <-looks:
		case <-t.Context().Done():
		}
	}
	answers := make(chan error)
	for _, name := range names {
		go func() { answers <- remediate(t.Context(), f.client(t, person, nil), f.get(t, name), false) }()
	}
	var refused []string
	for range names {
		if err := <-answers; err != nil {
			refused = append(refused, err.Error())
		}
	}
	if len(refused) != 1 || !strings.Contains(refused[0], "Refused (keep-host): a power-off of the host of Machine cp-") || !strings.Contains(refused[0], "the ledger was changed") {
		t.Errorf("refused: %q", refused)
	}
	if got := f.guard.findings(); !slices.Contains(got, "keep-host allowed") || !slices.Contains(got, "keep-host denied") {
		t.Errorf("recorded: %q", got)
	}
}
