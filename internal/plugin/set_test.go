package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/cpms"
)

// keptAsSet is the control plane with a ControlPlaneMachineSet that keeps its Machines, and wants them a size larger.
func keptAsSet(t *testing.T, change func(*machinev1.ControlPlaneMachineSet)) []client.Object {
	t.Helper()
	set := &machinev1.ControlPlaneMachineSet{}
	if err := yaml.UnmarshalStrict([]byte(`
metadata: {namespace: openshift-machine-api, name: cluster, uid: uid-of-the-set, finalizers: [`+cpms.Finalizer+`]}
spec:
  state: Active
  replicas: 3
  strategy: {type: RollingUpdate}
  selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: {machine.openshift.io/cluster-api-cluster: demo, machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
      spec: {providerSpec: {value: {kind: AWSMachineProviderConfig, apiVersion: machine.openshift.io/v1beta1, instanceType: m5.xlarge, ami: {id: ami-1}, blockDevices: [{ebs: {volumeSize: 120}}]}}}
status:
  replicas: 3
  readyReplicas: 3
  conditions:
  - {type: Progressing, status: "True", reason: Acting, message: "create Machine 1: Machine master-1 is being deleted"}
`), set); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(set)
	}
	objects := controlPlane()
	for _, o := range objects {
		if m, ok := o.(*machinev1beta1.Machine); ok {
			m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, machinev1.GroupVersion.WithKind("ControlPlaneMachineSet"))}
		}
	}
	return append(objects, set)
}

// TestSet: what the commands say and do where a set keeps the Machines.
func TestSet(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	now := noon().Add(time.Minute)
	inactive := func(s *machinev1.ControlPlaneMachineSet) {
		s.Spec.State = machinev1.ControlPlaneMachineSetStateInactive
	}
	degraded := func(s *machinev1.ControlPlaneMachineSet) {
		s.Status.Conditions = []metav1.Condition{{Type: "Degraded", Status: metav1.ConditionTrue, Reason: "SetUnusable", Message: "nothing is done: the failure domains are those of GCP"}}
	}
	onDelete := func(s *machinev1.ControlPlaneMachineSet) { s.Spec.Strategy.Type = machinev1.OnDelete }
	refused := func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
		return apierrors.NewForbidden(machinev1.Resource("controlplanemachinesets"), "cluster", errors.New(`admission webhook "x" denied the request: Refused (control-plane-set): no such type.`))
	}
	forbidden := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if _, ok := o.(*machinev1.ControlPlaneMachineSet); ok {
			return apierrors.NewForbidden(machinev1.Resource("controlplanemachinesets"), key.Name, errors.New("no"))
		}
		return c.Get(ctx, key, o, options...)
	}
	// The platform's operator keeps the set: its Deployment is here.
	byPlatform := func(s *machinev1.ControlPlaneMachineSet) { s.Finalizers = nil }
	platform := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if _, ok := o.(*appsv1.Deployment); ok {
			return nil
		}
		return c.Get(ctx, key, o, options...)
	}
	// The set does what it is asked for at once.
	rollsOut := func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
		if set, ok := o.(*machinev1.ControlPlaneMachineSet); ok {
			set.Status.UpdatedReplicas, set.Status.Conditions = 3, nil
		}
		return c.Patch(ctx, o, patch, options...)
	}
	stays := func(t *testing.T, c client.Client) {
		if got := templateType(t, c); got != "m5.xlarge" {
			t.Errorf("the template's instance type is %s", got)
		}
	}
	all := func(t *testing.T, c client.Client) {
		var machines machinev1beta1.MachineList
		if err := c.List(t.Context(), &machines); err != nil || slices.ContainsFunc(machines.Items, func(m machinev1beta1.Machine) bool { return m.Name == "master-0" && m.DeletionTimestamp != nil }) {
			t.Errorf("master-0 is deleted: %v", err)
		}
	}
	deployments := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if _, ok := o.(*appsv1.Deployment); ok {
			return apierrors.NewForbidden(appsv1.Resource("deployments"), key.Name, errors.New("no"))
		}
		return c.Get(ctx, key, o, options...)
	}
	for name, c := range map[string]struct {
		args   string
		in     string
		change func(*machinev1.ControlPlaneMachineSet)
		funcs  interceptor.Funcs
		status int
		then   func(t *testing.T, c client.Client)
	}{
		"set-status":            {args: "status"},
		"set-status-inactive":   {args: "status", change: inactive},
		"set-status-forbidden":  {args: "status", funcs: interceptor.Funcs{Get: forbidden}},
		"set-status-platform":   {args: "status", change: byPlatform, funcs: interceptor.Funcs{Get: platform}},
		"set-explain":           {args: "explain master-0"},
		"set-explain-platform":  {args: "explain master-0", change: byPlatform, funcs: interceptor.Funcs{Get: platform}},
		"set-replace-platform":  {args: "replace master-0 --instance-type m5.2xlarge --dry-run", change: byPlatform, funcs: interceptor.Funcs{Get: platform}, then: stays},
		"set-explain-nobody":    {args: "explain master-0", change: byPlatform},
		"set-replace-nobody":    {args: "replace master-0 --yes --timeout 2s", change: byPlatform, status: 1, then: all},
		"set-replace-unknown":   {args: "replace master-0 --yes --timeout 2s", change: byPlatform, funcs: interceptor.Funcs{Get: deployments}, status: 1, then: all},
		"set-replace-name":      {args: "replace master-0 --name master-9", status: 2},
		"set-replace-inactive":  {args: "replace master-0", change: inactive, status: 1},
		"set-replace-degraded":  {args: "replace master-0", change: degraded, status: 1},
		"set-replace-dry-run":   {args: "replace master-0 --instance-type m5.2xlarge --dry-run", then: stays},
		"set-replace-no":        {args: "replace master-0 --instance-type m5.2xlarge", in: "no\n", status: 1, then: stays},
		"set-replace-on-delete": {args: "replace master-0 --instance-type m5.2xlarge", in: "no\n", change: onDelete, status: 1, then: stays},
		"set-replace-refused":   {args: "replace master-0 --instance-type m5.2xlarge --yes", funcs: interceptor.Funcs{Patch: refused}, status: 1, then: stays},
		"set-replace-all": {args: "replace master-0 --instance-type m5.2xlarge", in: "cluster\n", funcs: interceptor.Funcs{Patch: rollsOut}, then: func(t *testing.T, c client.Client) {
			if got := templateType(t, c); got != "m5.2xlarge" {
				t.Errorf("the template's instance type is %s", got)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			api := memory(t, "alice", c.funcs, append(keptAsSet(t, c.change), reportOf(t, "waiting", now.Add(-3*time.Second), nil))...)
			var out, errs bytes.Buffer
			status := execute(t.Context(), strings.Fields(c.args), terminal{strings.NewReader(c.in), &out, &errs, func() time.Time { return now }, fakes{api, ""}})
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast "+c.args+"\n"+out.String()+errs.String())
			if c.then != nil {
				c.then(t, api)
			}
		})
	}
}

func templateType(t *testing.T, c client.Client) string {
	t.Helper()
	var set machinev1.ControlPlaneMachineSet
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: cpms.Name}, &set); err != nil {
		t.Fatal(err)
	}
	var spec struct{ InstanceType string }
	if err := yaml.Unmarshal(set.Spec.Template.OpenShiftMachineV1Beta1Machine.Spec.ProviderSpec.Value.Raw, &spec); err != nil {
		t.Fatal(fmt.Errorf("the template: %w", err))
	}
	return spec.InstanceType
}

// typing is a person who types while something happens.
type typing struct {
	io.Reader
	meanwhile func()
}

func (p *typing) Read(b []byte) (int, error) {
	if p.meanwhile != nil {
		p.meanwhile()
		p.meanwhile = nil
	}
	return p.Reader.Read(b) //nolint:wrapcheck // as a Reader does
}

// TestSetMeanwhile: the set's status may be written while a person types; a change of its spec needs another look.
func TestSetMeanwhile(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	now := noon().Add(time.Minute)
	for what, c := range map[string]struct {
		write func(*machinev1.ControlPlaneMachineSet)
		want  string
	}{
		"its status": {func(s *machinev1.ControlPlaneMachineSet) { s.Status.ReadyReplicas = 2 }, "m5.2xlarge"},
		"its spec":   {func(s *machinev1.ControlPlaneMachineSet) { s.Generation++ }, "m5.xlarge"},
	} {
		rollsOut := func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if set, ok := o.(*machinev1.ControlPlaneMachineSet); ok {
				set.Status.UpdatedReplicas, set.Status.Conditions = 3, nil
			}
			return api.Patch(ctx, o, patch, options...)
		}
		api := memory(t, "alice", interceptor.Funcs{Patch: rollsOut}, append(keptAsSet(t, nil), reportOf(t, "waiting", now.Add(-3*time.Second), nil))...)
		person := &typing{strings.NewReader("cluster\n"), func() {
			var set machinev1.ControlPlaneMachineSet
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: cpms.Name}, &set); err != nil {
				t.Fatal(err)
			}
			c.write(&set)
			if err := api.Update(t.Context(), &set); err != nil {
				t.Fatal(err)
			}
		}}
		var out, errs bytes.Buffer
		execute(t.Context(), strings.Fields("replace master-0 --instance-type m5.2xlarge"), terminal{person, &out, &errs, func() time.Time { return now }, fakes{api, ""}})
		if got := templateType(t, api); got != c.want {
			t.Errorf("after %s was written the template's instance type is %s, want %s\n%s%s", what, got, c.want, out.String(), errs.String())
		}
	}
}
