package observe

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// TestClaims has Watch find the Machines that have a control-plane Machine's instance, on a real API server and among Machines of which no list can hold
// one, and Hosts compare a new Machine with all of them.
func TestClaims(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api, err := client.NewWithWatch(apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...)).Config, client.Options{Scheme: scheme})
	must(t, err)
	create := func(name, role, provider string) {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{quorum.RoleLabel: role},
		}}
		if provider != "" {
			m.Spec.ProviderID = &provider
		}
		must(t, api.Create(t.Context(), m))
	}
	create("master-0", "master", "process:///0")
	for i := range 101 { // more than a page
		create(fmt.Sprintf("worker-%03d", i), "worker", fmt.Sprintf("process:///worker-%d", i))
	}
	deep := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "deep", Labels: map[string]string{quorum.RoleLabel: "worker"}}}
	must(t, api.Create(t.Context(), deep))
	nestDeep(t, api, deep)
	g := &Observer{API: api, Etcd: silent{}, Namespace: metav1.NamespaceDefault, Clock: clock.RealClock{}, Claims: NewClaims()}
	names := func(machines []quorum.Machine) (out []string) {
		for _, m := range machines {
			out = append(out, m.Name)
		}
		return out
	}

	for provider, want := range map[string][]string{"process:///worker-100": {"worker-100"}, "process:///0": nil, "process:///none": nil} { // the control plane's own are known without
		s, err := g.Hosts(t.Context(), &quorum.Machine{Name: "new", Role: "master", ProviderID: provider}, true, false)
		must(t, err)
		if diff := cmp.Diff(want, names(s.Claimants)); diff != "" || s.ClaimantsWhy != "" || s.MachineSetsWhy == "" {
			t.Errorf("%s (-want +got), %s, %s:\n%s", provider, s.ClaimantsWhy, s.MachineSetsWhy, diff)
		}
	}
	set := &machinev1beta1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "workers"}}
	must(t, api.Create(t.Context(), set))
	s, err := g.Hosts(t.Context(), &quorum.Machine{Role: "master"}, false, true)
	must(t, err)
	if diff := cmp.Diff([]string{string(set.UID)}, s.MachineSets); diff != "" || s.MachineSetsWhy != "" {
		t.Errorf("MachineSets (-want +got), %s:\n%s", s.MachineSetsWhy, diff)
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- g.Watch(ctx) }()
	defer func() {
		stop()
		must(t, <-ended)
	}()
	found := func() ([]string, error) {
		s, err := g.Snapshot(t.Context())
		if err != nil || s.ClaimantsWhy != "" {
			return nil, fmt.Errorf("%s: %w", s.ClaimantsWhy, err)
		}
		return names(s.Claimants), nil
	}
	eventually := NewWithT(t).Eventually
	eventually(func() bool { g.Claims.mu.Lock(); defer g.Claims.mu.Unlock(); return g.Claims.hosts != nil }).WithTimeout(20 * time.Second).Should(BeTrue())
	if none, err := found(); err != nil || len(none) > 0 {
		t.Errorf("%v, %v", none, err)
	}
	create("master-1", "master", "process:///worker-7") // it looks again, since the control plane has another host
	eventually(found).WithTimeout(20 * time.Second).Should(Equal([]string{"worker-007"}))
}
