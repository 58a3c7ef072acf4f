//go:build !race

package registrations_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiadmission "k8s.io/apiserver/pkg/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

// TestLargeLists: what the API server evaluates for a Machine that is full of hooks or owners, and what Holdfast decides, takes well below a
// second; it took 3 to 10 s with exists() over such a list.
func TestLargeLists(t *testing.T) {
	const most = time.Second // of this thread's time on a CPU, so that other work on the computer counts little
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	compiled := compile(identities())
	policy, _ := policies(t, registrations.Options{MachineNamespace: "openshift-machine-api", Identities: identities()})
	before := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{quorum.RoleLabel: "master"}}}
	for i := range 30_000 {
		before.Spec.LifecycleHooks.PreDrain = append(before.Spec.LifecycleHooks.PreDrain, machinev1beta1.LifecycleHook{Name: fmt.Sprintf("hook-%d", i), Owner: "x"})
	}
	who := admission.User{Name: "alice"}
	owned := before.DeepCopy() // before there was a limit
	for i := range 19_000 {
		owned.OwnerReferences = append(owned.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "A", Name: "a", UID: types.UID(fmt.Sprint(i))})
	}
	for what, change := range map[string]func(*machinev1beta1.Machine){
		"the first of many hooks": func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks.PreDrain[0].Owner = "y" },
		"the last of many hooks":  func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks.PreDrain[29_999].Owner = "y" },
		"a hook less":             func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks.PreDrain = m.Spec.LifecycleHooks.PreDrain[1:] },
		"many owners": func(m *machinev1beta1.Machine) {
			for i := range 10_000 {
				m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: types.UID(fmt.Sprint(i))})
			}
		},
		"an instance": func(m *machinev1beta1.Machine) { m.Spec.ProviderID = new("cloud:///i-0") },
	} {
		next := before.DeepCopy()
		change(next)
		full := owned.DeepCopy()
		change(full)
		for name, evaluate := range map[string]func(){
			"repair": func() { match(t, compiled.repair, apiadmission.Update, before, next, who) },
			"closed": func() { match(t, compiled.closed, apiadmission.Update, before, next, who) },
			"open":   func() { match(t, compiled.open, apiadmission.Update, before, next, who) },
			"policy": func() { policy.denials(t, before, next, who) },
			"Holdfast": func() {
				was, is := machineapi.Machine(owned), machineapi.Machine(full)
				identities().Admit(&admission.Request{Operation: admission.OperationUpdate, User: who, Old: &was, New: &is}, &quorum.Snapshot{})
			},
		} {
			began := threadTime(t)
			evaluate()
			took := threadTime(t) - began
			t.Logf("%s, %s: %v", what, name, took)
			if took > most {
				t.Errorf("%s: %s takes %v", what, name, took)
			}
		}
	}
}

// threadTime is how long this thread was on a CPU.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
