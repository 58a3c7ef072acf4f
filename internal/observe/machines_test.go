package observe

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestMachines reads every Machine that has a control-plane role or type, also one whose labels change between the lists.
func TestMachines(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	must(t, machinev1beta1.Install(scheme))
	api, err := client.New(apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...)).Config, client.Options{Scheme: scheme})
	must(t, err)
	for name, labels := range map[string]map[string]string{
		"both":      {quorum.RoleLabel: "master", quorum.TypeLabel: "master"},
		"role-only": {quorum.RoleLabel: "arbiter"},
		"type-only": {quorum.TypeLabel: "control-plane"},
		"differ":    {quorum.RoleLabel: "worker", quorum.TypeLabel: "master"},
		"worker":    {quorum.RoleLabel: "worker", quorum.TypeLabel: "worker"},
		"neither":   nil,
	} {
		must(t, api.Create(t.Context(), &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: labels}}))
	}
	const want = "[both differ role-only type-only]"
	if got := names(t, api); got != want {
		t.Errorf("reads %s, want %s", got, want)
	}
	// Between the list by role, which does not have it yet, and that of the rest, which has it no more.
	moving := &relabeling{Reader: api, listed: make(chan struct{}), relabel: func() {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "type-only"}}
		must(t, api.Patch(t.Context(), m, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:"master"}}}`, quorum.RoleLabel))))
	}}
	if got := names(t, moving); got != want {
		t.Errorf("reads %s while a Machine is given a role, want %s", got, want)
	}
}

func names(t *testing.T, api client.Reader) string {
	t.Helper()
	machines, err := (&Observer{API: api, Namespace: metav1.NamespaceDefault}).Machines(t.Context())
	must(t, err)
	var out []string
	for _, m := range machines {
		out = append(out, m.Name)
	}
	return fmt.Sprint(out)
}

// relabeling changes a label after the list by role, and before the first list by type.
type relabeling struct {
	client.Reader
	listed  chan struct{}
	once    sync.Once
	relabel func()
}

func (r *relabeling) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	if strings.Contains(o.LabelSelector.String(), quorum.TypeLabel) {
		r.once.Do(func() {
			<-r.listed
			r.relabel()
		})
		return r.Reader.List(ctx, list, opts...)
	}
	defer close(r.listed)
	return r.Reader.List(ctx, list, opts...)
}
