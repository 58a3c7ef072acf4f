package plugin

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestUninstall: what uninstall refuses, when somebody acts meanwhile as well. test/install has it take a whole
// installation off a real API server; what it would do wrong there cannot be undone, and is asked for here.
func TestUninstall(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	drained := func(m *machinev1beta1.Machine) {
		m.Status.Conditions = []machinev1beta1.Condition{{Type: machinev1beta1.MachineDrained, Status: corev1.ConditionTrue}}
	}
	nodeless := func(m *machinev1beta1.Machine) { m.Status.NodeRef = nil }
	undrained := func(m *machinev1beta1.Machine) { m.Annotations[excludeDraining] = "" }
	unhooked := func(m *machinev1beta1.Machine) { machineapi.Release(m, true, false) }
	bare := func(m *machinev1beta1.Machine) { machineapi.Release(m, true, true) }
	// Somebody deletes master-0 between the first look at it and the second, or between that and the patch.
	scaled := func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
		if _, ok := o.(*appsv1.Deployment); ok {
			deleteMaster0(ctx, t, c)
		}
		return c.Patch(ctx, o, patch, options...)
	}
	looked := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if _, ok := o.(*machinev1beta1.Machine); ok && key.Name == "master-0" {
			deleteMaster0(ctx, t, c)
		}
		return c.Get(ctx, key, o, options...)
	}
	patched := func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
		if m, ok := o.(*machinev1beta1.Machine); ok && m.Name == "master-0" && m.DeletionTimestamp == nil {
			deleteMaster0(ctx, t, c)
		}
		return c.Patch(ctx, o, patch, options...)
	}
	const yes, full = " --yes", " --yes --mode full"
	for name, c := range map[string]struct {
		args            string
		operator        bool                            // cluster-etcd-operator is here
		clusterOperator bool                            // its ClusterOperator is, and no Deployment
		deleting        func(m *machinev1beta1.Machine) // how master-1 is, which is being deleted
		funcs           interceptor.Funcs
		set             *machinev1.ControlPlaneMachineSet // that Holdfast keeps; it owns master-0
		stuck           bool                              // a pod of Holdfast's does not end
		stranger        bool                              // somebody else's pod is in Holdfast's namespace
		replicas        int32
		status          int
		then            func(t *testing.T, c client.Client)
	}{
		"uninstall-guard":            {args: yes, operator: true, replicas: 2, then: unlatched},
		"uninstall-guard-report":     {args: " --yes --mode guard", replicas: 2, then: unlatched},
		"uninstall-cluster-operator": {args: yes, clusterOperator: true, replicas: 2, then: unlatched},
		"uninstall-drained":          {args: yes, operator: true, deleting: drained, replicas: 2, status: 1, then: untouched},
		"uninstall-nodeless":         {args: yes, operator: true, deleting: nodeless, replicas: 2, status: 1, then: untouched},
		"uninstall-undrained":        {args: yes, operator: true, deleting: undrained, replicas: 2, status: 1, then: untouched},
		"uninstall-unhooked":         {args: yes, operator: true, deleting: unhooked, replicas: 0, status: 1, then: untouched},
		"uninstall-full":             {args: full, replicas: 2, status: 1, then: untouched},
		"uninstall-full-unhooked":    {args: full, deleting: unhooked, replicas: 2, status: 1, then: untouched},
		"uninstall-full-free":        {args: full, deleting: bare, replicas: 2, then: stripped},
		"uninstall-full-scaled":      {args: full, deleting: bare, replicas: 2, funcs: interceptor.Funcs{Patch: scaled}, status: 1, then: stillHeld},
		"uninstall-full-looked":      {args: full, deleting: bare, replicas: 2, funcs: interceptor.Funcs{Get: looked}, status: 1, then: stillHeld},
		"uninstall-full-patched":     {args: full, deleting: bare, replicas: 2, funcs: interceptor.Funcs{Patch: patched}, status: 1, then: stillHeld},
		"uninstall-set":              {args: full, deleting: bare, replicas: 2, set: ownSet(nil), then: setLeft},
		"uninstall-set-trial":        {args: " --dry-run --mode full", deleting: bare, replicas: 2, set: ownSet(nil), then: setKept},
		"uninstall-set-deleted":      {args: full, deleting: bare, replicas: 2, set: ownSet(ptr.To(metav1.NewTime(noon()))), status: 1, then: setKept},
		"uninstall-nobodys-hooks":    {args: yes, replicas: 2, status: 1, then: untouched},
		"uninstall-pod-lingers":      {args: yes + " --timeout 500ms", operator: true, replicas: 2, stuck: true, status: 1},
		"uninstall-elsewhere":        {args: yes + " --holdfast-namespace openshift-machine-api", operator: true, replicas: 2, status: 2, then: untouched},
		"uninstall-stranger":         {args: yes, operator: true, replicas: 2, stranger: true, status: 1, then: untouched},
		"uninstall-guard-dry-run":    {args: " --dry-run", operator: true, replicas: 2, then: untouched},
		"uninstall-unhooked-trial":   {args: " --dry-run", operator: true, deleting: unhooked, replicas: 2, status: 1, then: untouched},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(installation(c.replicas), controlPlane()...)
			for i := range objects {
				switch o := objects[i].(type) {
				case *machinev1beta1.Machine:
					o.Labels[replacesLabel] = "uid-of-another"
					if o.DeletionTimestamp != nil && c.deleting != nil {
						c.deleting(o)
					}
				case *corev1.ConfigMap:
					o.Name = "another" // without what full mode publishes the mode is guard
				}
			}
			if c.set != nil {
				objects = append(objects, c.set, &machinev1beta1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: cpms.HealthCheckName}})
				for _, o := range objects {
					if o.GetName() == "master-0" {
						o.SetOwnerReferences([]metav1.OwnerReference{
							{APIVersion: machinev1.GroupVersion.String(), Kind: "ControlPlaneMachineSet", Name: c.set.Name, UID: c.set.UID, Controller: new(true)},
							{APIVersion: "v1", Kind: "ConfigMap", Name: "another", UID: "another"},
						})
					}
				}
			}
			if c.operator {
				objects = append(objects, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd-operator", Name: "etcd-operator"}})
			}
			if c.clusterOperator {
				objects = append(objects, &configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: "etcd"}})
			}
			if c.stuck {
				objects = append(objects, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: holdfastNamespace, Name: "holdfast-1", Labels: map[string]string{"app": "holdfast", "app.kubernetes.io/name": "holdfast"},
						DeletionTimestamp: ptr.To(metav1.NewTime(noon())), Finalizers: []string{"test/kubelet"},
					},
					Spec: corev1.PodSpec{NodeName: "node-2"},
				})
			}
			if c.stranger {
				objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: holdfastNamespace, Name: "database"}})
			}
			api := memory(t, "alice", c.funcs, objects...)
			var out, errs bytes.Buffer
			status := execute(t.Context(), strings.Fields("uninstall"+c.args), terminal{strings.NewReader(""), &out, &errs, noon, fakes{api, "rest"}})
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast uninstall"+c.args+"\n"+out.String()+errs.String())
			if c.then != nil {
				c.then(t, api)
			}
		})
	}
}

// ownSet is a set that Holdfast keeps.
func ownSet(deleted *metav1.Time) *machinev1.ControlPlaneMachineSet {
	return &machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: defaultNamespace, Name: cpms.Name, UID: "set", Finalizers: []string{cpms.Finalizer}, DeletionTimestamp: deleted,
	}}
}

// setLeft: its health check is gone, and the set is nobody's and owns nothing.
func setLeft(t *testing.T, c client.Client) {
	set, check := &machinev1.ControlPlaneMachineSet{}, &machinev1beta1.MachineHealthCheck{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: cpms.Name}, set); err != nil || len(set.Finalizers) > 0 {
		t.Errorf("the set has %v, %v", set.Finalizers, err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: cpms.HealthCheckName}, check); !apierrors.IsNotFound(err) {
		t.Errorf("the health check is there: %v", err)
	}
	if owners := machine(t, c, "master-0").OwnerReferences; len(owners) != 1 || owners[0].Name != "another" {
		t.Errorf("master-0 is owned by %v", owners)
	}
}

// setKept: nothing was done to it.
func setKept(t *testing.T, c client.Client) {
	set, check := &machinev1.ControlPlaneMachineSet{}, &machinev1beta1.MachineHealthCheck{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: cpms.Name}, set); err != nil || len(set.Finalizers) != 1 {
		t.Errorf("the set has %v, %v", set.Finalizers, err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: cpms.HealthCheckName}, check); err != nil {
		t.Error(err)
	}
	if owners := machine(t, c, "master-0").OwnerReferences; len(owners) != 2 {
		t.Errorf("master-0 is owned by %v", owners)
	}
}

// installation is Holdfast's Deployment and its namespace.
func installation(replicas int32) []client.Object {
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: holdfastNamespace}},
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: holdfastNamespace, Name: "holdfast"},
			Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "holdfast"}}},
		},
	}
}

func deleteMaster0(ctx context.Context, t *testing.T, c client.Client) {
	if err := c.Delete(ctx, &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: "master-0"}}); err != nil {
		t.Error(err)
	}
}

// unlatched: etcd's hook stayed on all Machines, and all that is Holdfast's went.
func unlatched(t *testing.T, c client.Client) {
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		m := machine(t, c, name)
		if seen := machineapi.Machine(m); seen.Hook != quorum.EntryOurs || seen.Latch != quorum.EntryAbsent || seen.Override != "" || m.Annotations["team"] == "" || m.Labels[replacesLabel] != "" {
			t.Errorf("%s: %+v, %v, %v", name, m.Spec.LifecycleHooks, m.Annotations, m.Labels)
		}
	}
}

// stripped: the hooks went, too.
func stripped(t *testing.T, c client.Client) {
	for _, name := range []string{"master-0", "master-2"} {
		if seen := machineapi.Machine(machine(t, c, name)); seen.Hook != quorum.EntryAbsent || seen.Latch != quorum.EntryAbsent {
			t.Errorf("%s: %+v", name, seen)
		}
	}
}

// untouched: nothing was done to anything.
func untouched(t *testing.T, c client.Client) {
	var d appsv1.Deployment
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: holdfastNamespace, Name: "holdfast"}, &d); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		if seen := machineapi.Machine(machine(t, c, name)); seen.Latch != quorum.EntryOurs || seen.Override == "" {
			t.Errorf("%s: %+v", name, seen)
		}
	}
}

// stillHeld: the Machine that was deleted meanwhile has hook and latch.
func stillHeld(t *testing.T, c client.Client) {
	seen := machineapi.Machine(machine(t, c, "master-0"))
	if !seen.Deleting() || !seen.Protected() {
		t.Errorf("master-0 is let go: %+v", seen)
	}
}

// TestUninstallElsewhere: where there is no Deployment and Holdfast tells of itself, it would put back what is taken off: nothing is.
func TestUninstallElsewhere(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	objects := controlPlane()
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: holdfastNamespace}})
	for _, o := range objects {
		if m, ok := o.(*machinev1beta1.Machine); ok {
			m.DeletionTimestamp, m.Finalizers = nil, []string{quorum.Finalizer}
		}
	}
	api := memory(t, "alice", interceptor.Funcs{}, append(objects, reportOf(t, "rest", noon(), nil))...)
	var out, errs bytes.Buffer
	now := func() time.Time { return noon().Add(10 * time.Second) }
	status := execute(t.Context(), strings.Fields("uninstall --yes --mode guard"), terminal{strings.NewReader(""), &out, &errs, now, fakes{api, "rest"}})
	if status != 1 || !strings.Contains(errs.String(), "Holdfast may run elsewhere, and would put back what is taken off: it last reported 10s ago") {
		t.Errorf("status %d: %s%s", status, out.String(), errs.String())
	}
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		if seen := machineapi.Machine(machine(t, api, name)); seen.Latch != quorum.EntryOurs {
			t.Errorf("%s lost its latch", name)
		}
	}
}

// TestUninstallUnknown: where nobody can tell whether Holdfast runs elsewhere, nothing is taken off.
func TestUninstallUnknown(t *testing.T) {
	forbidden := func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
		return apierrors.NewForbidden(corev1.Resource("configmaps"), key.Name, errors.New("no"))
	}
	u := &uninstalling{cluster: &cluster{Client: memory(t, "alice", interceptor.Funcs{Get: forbidden}), clusterFlags: &clusterFlags{holdfast: holdfastNamespace}}, t: terminal{out: &bytes.Buffer{}}}
	if err := u.silent(t.Context()); err == nil || !strings.Contains(err.Error(), "Holdfast may run elsewhere") {
		t.Errorf("%v", err)
	}
}
