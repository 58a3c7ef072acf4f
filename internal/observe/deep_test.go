package observe

import (
	"context"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
)

// TestDeepMachine has a real API server store a Machine that is nested so deep that no list that holds it can be decoded: all
// Machines are read all the same.
func TestDeepMachine(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api, err := client.New(apiserver.Start(t, apiserver.WithMachineAPI(t)).Config, client.Options{Scheme: scheme})
	must(t, err)
	for _, name := range []string{"deep", "master-0"} {
		must(t, api.Create(t.Context(), &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master"},
		}, Spec: machinev1beta1.MachineSpec{ProviderID: new("process:///" + name)}}))
	}
	deep := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "deep"}}
	nest := func(depth int) error {
		value := strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
		return api.Patch(t.Context(), deep, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"providerSpec":{"value":`+value+`}}}`)))
	}
	// What the API server stores it gives out, one by one. How deep that may be is its own affair.
	depth := 10_001
	for ; depth > 9_900; depth-- {
		if nest(depth) == nil {
			break
		}
	}
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
