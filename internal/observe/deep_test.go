package observe

import (
	"context"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestDeepMachine has a real API server store a Machine that is nested so deep that no list that holds it can be decoded: all
// Machines are read all the same.
func TestDeepMachine(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api, err := client.New(apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...)).Config, client.Options{Scheme: scheme})
	must(t, err)
	for _, name := range []string{"deep", "master-0"} {
		must(t, api.Create(t.Context(), &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master"},
		}, Spec: machinev1beta1.MachineSpec{ProviderID: new("process:///" + name)}}))
	}
	deep := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "deep"}}
	// What the API server stores it gives out, one by one. How deep that may be is its own affair.
	depth := nestDeep(t, api, deep)
	t.Logf("nested %d deep", depth)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var list machinev1beta1.MachineList
	if err := api.List(ctx, &list); err == nil {
		t.Fatal("all of them can be listed, so this test shows nothing")
	}
	g := &Observer{API: api, Namespace: metav1.NamespaceDefault}
	machines, err := g.Machines(ctx)
	must(t, err)
	if len(machines) != 2 || machines[0].Name != "deep" || machines[1].ProviderID != "process:///master-0" {
		t.Fatalf("Machines are %+v", machines)
	}
	if m := &machines[0]; m.Unread == "" && m.ProviderID != "process:///deep" {
		t.Errorf("the deep one is %+v", m)
	}
}

// nestDeep nests a Machine as deep as the API server stores it. It is written whole: to merge such a patch takes the API server 8 s, on a
// busy computer more than the 60 s that it gives a request.
func nestDeep(t *testing.T, api client.Client, m *machinev1beta1.Machine) (depth int) {
	t.Helper()
	must(t, api.Get(t.Context(), client.ObjectKeyFromObject(m), m))
	for depth = 10_001; depth > 9_900; depth-- {
		m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth))}
		err := api.Update(t.Context(), m)
		if err == nil || !strings.Contains(err.Error(), "exceeded max depth") {
			must(t, err)
			break
		}
	}
	return depth
}
