package observe

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
)

// TestClaims has the index follow the Machines of a real API server, one of which no list can hold, and answers from all of them
// where there is no index.
func TestClaims(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api, err := client.NewWithWatch(apiserver.Start(t, apiserver.WithMachineAPI(t)).Config, client.Options{Scheme: scheme})
	must(t, err)
	create := func(name, role, provider string) *machinev1beta1.Machine {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{quorum.RoleLabel: role},
		}}
		if provider != "" {
			m.Spec.ProviderID = &provider
		}
		must(t, api.Create(t.Context(), m))
		return m
	}
	create("master-0", "master", "process:///0")
	for i := range claimsPage + 1 { // more than a page
		create(fmt.Sprintf("worker-%03d", i), "worker", fmt.Sprintf("process:///worker-%d", i))
	}
	deep := create("deep", "worker", "")
	nestDeep(t, api, deep)

	broken := make(chan error) // of each watch
	watched := interceptor.NewClient(api, interceptor.Funcs{Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
		select {
		case err := <-broken:
			return nil, err
		default:
		}
		ctx, stop := context.WithCancel(ctx)
		go func() { // an error that is sent ends the watch that is under way, and the next one fails
			select {
			case err := <-broken:
				stop()
				broken <- err
			case <-ctx.Done():
			}
		}()
		return c.Watch(ctx, list, options...)
	}})
	claims := NewClaims(watched, metav1.NamespaceDefault, logr.Discard())
	g := &Observer{API: api, Etcd: silent{}, Namespace: metav1.NamespaceDefault, Clock: clock.RealClock{}, Claims: claims}
	of := func(provider string) (names []string) {
		t.Helper()
		s, err := g.Hosts(t.Context(), &quorum.Machine{Name: "new", Role: "master", ProviderID: provider}, false)
		must(t, err)
		if s.ClaimantsWhy != "" {
			t.Error(s.ClaimantsWhy)
		}
		if s.MachineSetsWhy == "" {
			t.Error("MachineSets that were not read look like none")
		}
		for _, m := range s.Claimants {
			names = append(names, m.Name)
		}
		return names
	}
	finds := func(provider string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, of(provider)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", provider, diff)
		}
	}
	finds("process:///worker-100", "worker-100") // there is no index yet
	finds("process:///0")                        // the control plane's own are known without

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- claims.Start(ctx) }()
	defer func() {
		stop()
		must(t, <-ended)
	}()
	eventually := NewWithT(t).Eventually
	eventually(func() bool { _, known, _ := claims.find(nil); return known }).WithTimeout(2 * time.Minute).Should(BeTrue())
	finds("process:///worker-100", "worker-100")
	create("master-1", "master", "process:///worker-7")
	var read []string // Machines that are read by themselves
	g.API = interceptor.NewClient(api, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
		if _, ok := object.(*machinev1beta1.Machine); ok {
			read = append(read, key.Name)
		}
		return c.Get(ctx, key, object, options...)
	}})
	s, err := g.Snapshot(t.Context())
	must(t, err)
	if len(s.Claimants) != 1 || s.Claimants[0].Name != "worker-007" || s.ClaimantsWhy != "" {
		t.Errorf("claimants %+v, %s", s.Claimants, s.ClaimantsWhy)
	}
	if diff := cmp.Diff([]string{"worker-007"}, read); diff != "" {
		t.Errorf("Machines that are read by themselves, beside the list of the control plane's (-want +got):\n%s", diff)
	}
	g.API = api
	set := &machinev1beta1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "workers"}}
	must(t, api.Create(t.Context(), set))
	s, err = g.Hosts(t.Context(), &quorum.Machine{Role: "master"}, true)
	must(t, err)
	if diff := cmp.Diff([]string{string(set.UID)}, s.MachineSets); diff != "" || s.MachineSetsWhy != "" {
		t.Errorf("MachineSets (-want +got), %s:\n%s", s.MachineSetsWhy, diff)
	}
	early := create("early", "worker", "process:///9")
	eventually(of).WithArguments("process:///9").WithTimeout(2 * time.Minute).Should(Equal([]string{"early"}))
	must(t, api.Patch(t.Context(), early, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"providerID":"process:///8"}}`))))
	eventually(of).WithArguments("process:///8").WithTimeout(2 * time.Minute).Should(Equal([]string{"early"}))
	finds("process:///9")
	must(t, api.Delete(t.Context(), early))
	eventually(func() int { names, _, _ := claims.find([]string{"instance process:///8"}); return len(names) }).WithTimeout(2 * time.Minute).Should(Equal(0))
	finds("process:///8")

	// A watch that breaks: what changes meanwhile is found all the same, and the index is back soon.
	known := func() bool { _, known, _ := claims.find(nil); return known }
	broken <- errors.New("the connection was closed")
	eventually(known).WithTimeout(2 * time.Minute).WithPolling(time.Millisecond).Should(BeFalse())
	if s, err = g.Snapshot(t.Context()); err != nil || len(s.Claimants) != 1 || s.Claimants[0].Name != "worker-007" {
		t.Errorf("who claimed before the watch broke is forgotten: %+v, %v", s.Claimants, err)
	}
	create("late", "worker", "process:///7")
	finds("process:///7", "late")
	eventually(known).WithTimeout(2 * time.Minute).Should(BeTrue())
	finds("process:///7", "late")
}
