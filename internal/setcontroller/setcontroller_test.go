package setcontroller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
)

const where = "openshift-machine-api"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fixture is a controller on a real API server, which has one set and Machines m-0 and m-1, and what the controller has seen of them.
func fixture(t *testing.T) (*Controller, *observe.Set) {
	t.Helper()
	env := apiserver.Start(t, apiserver.WithCRDs(t, append(assets.MachineAPI(), assets.ControlPlaneSetCRD)...))
	types := runtime.NewScheme()
	must(t, errors.Join(corev1.AddToScheme(types), machinev1.Install(types), machinev1beta1.Install(types)))
	config := rest.CopyConfig(env.Config)
	config.WarningHandler = rest.NoWarnings{}
	api, err := client.New(config, client.Options{Scheme: types})
	must(t, err)
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: where}}))
	labels := map[string]string{machinev1beta1.MachineClusterIDLabel: "demo", quorum.RoleLabel: "master", quorum.TypeLabel: "master"}
	spec := machinev1beta1.MachineSpec{ProviderSpec: machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{Raw: []byte(`{"kind":"K","apiVersion":"example.com/v1"}`)}}}
	object := &machinev1.ControlPlaneMachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: where, Name: cpms.Name},
		Spec: machinev1.ControlPlaneMachineSetSpec{
			State: machinev1.ControlPlaneMachineSetStateActive, Replicas: new(int32(3)), Selector: metav1.LabelSelector{MatchLabels: labels},
			Strategy: machinev1.ControlPlaneMachineSetStrategy{Type: machinev1.RollingUpdate},
			Template: machinev1.ControlPlaneMachineSetTemplate{
				MachineType: machinev1.OpenShiftMachineV1Beta1MachineType,
				OpenShiftMachineV1Beta1Machine: &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
					ObjectMeta: machinev1.ControlPlaneMachineSetTemplateObjectMeta{Labels: labels}, Spec: spec,
				},
			},
		},
	}
	must(t, api.Create(t.Context(), object))
	for _, name := range []string{"m-0", "m-1"} {
		must(t, api.Create(t.Context(), &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: where, Name: name, Labels: labels}, Spec: spec}))
	}
	meters := NewMetrics(prometheus.NewRegistry())
	c := &Controller{Client: api, Observer: &observe.Observer{API: api, Namespace: where, Clock: clock.RealClock{}}, Metrics: meters, Log: logr.Discard()}
	return c, look(t, c)
}

// look reads the set and its Machines, without etcd.
func look(t *testing.T, c *Controller) *observe.Set {
	t.Helper()
	set := &observe.Set{Object: &machinev1.ControlPlaneMachineSet{}, MachineVersions: map[types.UID]string{}}
	must(t, c.Client.Get(t.Context(), client.ObjectKey{Namespace: where, Name: cpms.Name}, set.Object))
	machines := machines(t, c)
	for i := range machines {
		set.MachineVersions[machines[i].UID] = machines[i].ResourceVersion
	}
	trials, err := cpms.Trials(set.Object, nil)
	must(t, err)
	set.Trial = cpms.Trial{Machines: trials}
	set.Facts = cpms.Read(set.Object, machines, nil, set.Trial)
	if set.Facts.Unusable != "" {
		t.Fatal(set.Facts.Unusable)
	}
	return set
}

func machines(t *testing.T, c *Controller) []machinev1beta1.Machine {
	t.Helper()
	var list machinev1beta1.MachineList
	must(t, c.Client.List(t.Context(), &list, client.InNamespace(where)))
	return list.Items
}

// about is an action about a Machine as it was seen.
func about(t *testing.T, c *Controller, name string, change machineset.Change) machineset.Action {
	t.Helper()
	var m machinev1beta1.Machine
	must(t, c.Client.Get(t.Context(), client.ObjectKey{Namespace: where, Name: name}, &m))
	return machineset.Action{Machine: name, UID: string(m.UID), Change: change, Why: "the test says so"}
}

// TestStale: nothing is done by what was seen of a set or of a Machine that has changed since.
func TestStale(t *testing.T) {
	t.Parallel()
	c, seen := fixture(t)
	conflict := func(what string, err error) {
		t.Helper()
		if !apierrors.IsConflict(err) {
			t.Errorf("%s: %v, want a conflict", what, err)
		}
	}
	remove, adopt := about(t, c, "m-0", machineset.Delete{}), about(t, c, "m-1", machineset.Adopt{})
	for _, m := range machines(t, c) {
		was := m.DeepCopy()
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "K", Name: "n", UID: "u", Controller: new(true)}}
		must(t, c.Client.Patch(t.Context(), &m, client.MergeFrom(was)))
	}
	conflict("delete a Machine", c.apply(t.Context(), seen, remove))
	conflict("adopt a Machine that got a controller", c.apply(t.Context(), seen, adopt))
	if n := len(machines(t, c)); n != 2 {
		t.Fatalf("%d Machines, want 2", n)
	}
	changed := seen.Object.DeepCopy()
	changed.Annotations = map[string]string{cpms.AutoRepairAnnotation: "false"}
	must(t, c.Client.Update(t.Context(), changed))
	conflict("write the status", c.writeStatus(t.Context(), seen, &machineset.Plan{}, time.Now()))
	conflict("take the set", c.apply(t.Context(), seen, machineset.Action{Change: machineset.TakeSet{}}))
	if err := c.apply(t.Context(), seen, machineset.Action{Machine: "m-0", UID: "another", Change: machineset.Delete{}}); !apierrors.IsNotFound(err) {
		t.Errorf("delete a Machine that has another's name: %v, want not found", err)
	}
	must(t, c.apply(t.Context(), look(t, c), remove))
	if n := len(machines(t, c)); n != 1 {
		t.Errorf("%d Machines, want 1", n)
	}
}

// TestFinalizers: Holdfast's finalizer takes the place of the platform's when a set is taken, and gives it back. Of a set that is being deleted
// both go. A step that changes nothing is an error, and is not tried in a circle.
func TestFinalizers(t *testing.T) {
	t.Parallel()
	c, seen := fixture(t)
	const others = "example.com/other"
	do := func(what string, change machineset.Change, want ...string) {
		t.Helper()
		must(t, c.apply(t.Context(), seen, machineset.Action{Change: change}))
		if seen = look(t, c); !slices.Equal(seen.Object.Finalizers, want) {
			t.Fatalf("%s: finalizers %v, want %v", what, seen.Object.Finalizers, want)
		}
	}
	seen.Object.Finalizers = []string{cpms.PlatformFinalizer, others}
	must(t, c.Client.Update(t.Context(), seen.Object))
	do("it is taken", machineset.TakeSet{}, others, cpms.Finalizer)
	do("it is given back", machineset.LeaveSet{}, others, cpms.PlatformFinalizer)
	do("it is taken again", machineset.TakeSet{}, others, cpms.Finalizer)
	if err := c.apply(t.Context(), seen, machineset.Action{Change: machineset.TakeSet{}}); err == nil {
		t.Error("a step that changes nothing succeeds")
	}
	if err := c.apply(t.Context(), seen, about(t, c, "m-0", machineset.Disown{})); err == nil {
		t.Error("a step that changes nothing of a Machine succeeds")
	}
	seen.Object.Finalizers = append(seen.Object.Finalizers, cpms.PlatformFinalizer) // of a take-over by a version before
	must(t, c.Client.Update(t.Context(), seen.Object))
	must(t, c.Client.Delete(t.Context(), seen.Object))
	seen = look(t, c)
	do("it is deleted", machineset.LeaveSet{}, others)
	if plan := machineset.Decide(&quorum.Snapshot{}, seen.Facts); len(plan.Actions) > 0 {
		t.Errorf("of a set with another's finalizer: %v", plan.Actions)
	}
}

// TestCreateTwice: two replicas that create a Machine by the same state of the set create one; by another state, another.
func TestCreateTwice(t *testing.T) {
	t.Parallel()
	c, seen := fixture(t)
	create := machineset.Action{Change: machineset.Create{Index: 2}}
	must(t, c.apply(t.Context(), seen, create))
	if err := c.apply(t.Context(), seen, create); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the second: %v, want that it exists already", err)
	}
	must(t, c.writeStatus(t.Context(), seen, &machineset.Plan{Counts: machineset.Counts{Replicas: 3}}, time.Now()))
	must(t, c.apply(t.Context(), seen, create))
	if n := len(machines(t, c)); n != 4 {
		t.Errorf("%d Machines, want 4", n)
	}
}

// TestHealthCheck: the set's health check is made, put right, and deleted where the set keeps none. Another's of that name is left alone.
func TestHealthCheck(t *testing.T) {
	t.Parallel()
	c, seen := fixture(t)
	stored := func() (*machinev1beta1.MachineHealthCheck, error) {
		var check machinev1beta1.MachineHealthCheck
		return &check, c.Client.Get(t.Context(), client.ObjectKey{Namespace: where, Name: cpms.HealthCheckName}, &check)
	}
	keep := func() {
		t.Helper()
		must(t, c.keepHealthCheck(t.Context(), &quorum.Snapshot{}, seen))
	}
	keep()
	if _, err := stored(); !apierrors.IsNotFound(err) {
		t.Fatalf("a set that is not Holdfast's keeps one: %v", err)
	}
	must(t, c.apply(t.Context(), seen, machineset.Action{Change: machineset.TakeSet{}}))
	seen = look(t, c)
	keep()
	check, err := stored()
	must(t, err)
	version := check.ResourceVersion
	keep()
	if check, err = stored(); err != nil || check.ResourceVersion != version {
		t.Errorf("it is written again, without need: %v", err)
	}
	check.Spec.MaxUnhealthy = nil
	check.Spec.UnhealthyConditions[0].Timeout.Duration = time.Minute
	check.Spec.NodeStartupTimeout.Duration = time.Hour
	must(t, c.Client.Update(t.Context(), check))
	keep()
	if check, err = stored(); err != nil || check.Spec.MaxUnhealthy == nil || check.Spec.MaxUnhealthy.String() != "1" {
		t.Errorf("it is not put right: %v, %v", check.Spec.MaxUnhealthy, err)
	}
	if got := check.Spec.UnhealthyConditions[0].Timeout.Duration; got != 20*time.Minute {
		t.Errorf("a Node may be not ready for %s", got)
	}
	if got := check.Spec.NodeStartupTimeout.Duration; got != time.Hour {
		t.Errorf("a person's time of %s became %s", time.Hour, got)
	}
	for after, want := range map[string]time.Duration{"40m": 40 * time.Minute, "soon": 20 * time.Minute, "-1m": 20 * time.Minute, "10s": 20 * time.Minute} {
		seen.Object.Annotations = map[string]string{cpms.RepairAfterAnnotation: after}
		keep()
		if check, err = stored(); err != nil || check.Spec.UnhealthyConditions[1].Timeout.Duration != want {
			t.Errorf("after %s: %v, %v", after, check.Spec.UnhealthyConditions, err)
		}
	}
	seen.Facts.AutoRepair, seen.Facts.OperatorWhy = false, "the API server does not say"
	keep()
	if _, err := stored(); err != nil {
		t.Errorf("it goes while it is not known whose the set is: %v", err)
	}
	seen.Facts.OperatorWhy = ""
	keep()
	if _, err := stored(); !apierrors.IsNotFound(err) {
		t.Errorf("it stays: %v", err)
	}
	foreign := healthCheck(seen.Object, 3)
	foreign.OwnerReferences = nil
	must(t, c.Client.Create(t.Context(), foreign))
	keep()
	if check, err = stored(); err != nil || check.UID != foreign.UID {
		t.Errorf("another's is deleted: %v", err)
	}
	seen.Facts.Deleting = true // with orphan propagation, the garbage collector took the owner off first
	keep()
	if _, err := stored(); !apierrors.IsNotFound(err) {
		t.Errorf("it stays behind: %v", err)
	}
}

// TestLate: a computer that slept for an hour in the middle of a round acts no more in it, nor does one whose clock was set.
func TestLate(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]bool{0: false, roundTimeout: false, roundTimeout + time.Millisecond: true, time.Hour: true, -time.Hour: true} {
		if got := late(began, began.Add(after)); got != want {
			t.Errorf("after %s: %t", after, got)
		}
	}
}

// TestRoundThatSlept: a round that began an hour ago by the wall clock does nothing.
func TestRoundThatSlept(t *testing.T) {
	t.Parallel()
	c, seen := fixture(t)
	c.Events = events.NewFakeRecorder(10)
	takes := []machineset.Action{{Change: machineset.TakeSet{}}}
	taken := func() bool { return slices.Contains(look(t, c).Object.Finalizers, cpms.Finalizer) }
	if err := c.act(t.Context(), seen, takes, time.Now().Add(-time.Hour)); err == nil || taken() {
		t.Errorf("it acts: %v", err)
	}
	must(t, c.act(t.Context(), seen, takes, time.Now()))
	if !taken() {
		t.Error("a round in time does not act")
	}
}

// TestNews: the controller looks at once when a voter was promoted, of which no watch tells.
func TestNews(t *testing.T) {
	news, looks := make(chan struct{}), make(chan struct{})
	c := &Controller{Observer: &observe.Observer{Namespace: where}, News: news}
	silent := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			return nil, errors.New("not here")
		},
	})
	go c.watch(t.Context(), silent, func() { looks <- struct{}{} })
	for range 2 {
		news <- struct{}{}
		<-looks
	}
}

// TestLongEvent: the API server takes no Event whose note is longer than 1024 bytes, and what an action says may be.
func TestLongEvent(t *testing.T) {
	recorder := events.NewFakeRecorder(1)
	c := &Controller{Events: recorder}
	c.event(&machinev1.ControlPlaneMachineSet{}, "Warning", "SetActionFailed", "create", strings.Repeat("é", 2000))
	if note := strings.TrimPrefix(<-recorder.Events, "Warning SetActionFailed "); len(note) > 1024 || len(note) < 900 {
		t.Errorf("%d bytes: %s", len(note), note)
	}
}
