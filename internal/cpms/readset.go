package cpms

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Name is the only name that a ControlPlaneMachineSet can have.
const Name = "cluster"

// Finalizer on a set says that Holdfast reconciles it.
const Finalizer = "holdfast.dev/control-plane-machine-set"

// PlatformFinalizer on a set says that the platform's operator reconciles it. Where both are gone before Machines are let go of, the garbage
// collector deletes them with the set.
const PlatformFinalizer = "controlplanemachineset.machine.openshift.io"

// HealthCheckName is that of the MachineHealthCheck that Holdfast keeps for its set.
const HealthCheckName = "holdfast-control-plane"

// AutoRepairAnnotation on a set, with the value "false", has it keep no MachineHealthCheck.
const AutoRepairAnnotation = "holdfast.dev/auto-repair"

// RepairAfterAnnotation on a set says for how long a Node may be not ready before its Machine is deleted, as 30m.
const RepairAfterAnnotation = "holdfast.dev/auto-repair-after"

// usualRepairAfter is as long as the platform's operator takes a Node that is not ready for one that reboots (OCPBUGS-20061). Hosts of bare metal
// take more than 10 minutes.
const usualRepairAfter = 20 * time.Minute

// leastRepairAfter is shorter than any restart of a host.
const leastRepairAfter = 5 * time.Minute

// RepairAfter is for how long a Node may be not ready before its Machine is deleted. What is no duration, or a shorter one than 5 minutes,
// is ignored.
func RepairAfter(set *machinev1.ControlPlaneMachineSet) time.Duration {
	if d, err := time.ParseDuration(set.Annotations[RepairAfterAnnotation]); err == nil && d >= leastRepairAfter {
		return d
	}
	return usualRepairAfter
}

// mostReplicas is the largest etcd cluster that is of use.
const mostReplicas = 7

// Read makes a set's facts of the object, of all Machines in its namespace that may be control-plane Machines, of the cluster's
// Infrastructure (nil without one), and of what the API server makes of the set's Machines. What cannot be read is in the facts, of the set or
// of one Machine.
func Read(set *machinev1.ControlPlaneMachineSet, machines []machinev1beta1.Machine, infra *configv1.Infrastructure, trial Trial) *machineset.Set {
	s := &machineset.Set{
		Name: set.Name, UID: string(set.UID), Active: set.Spec.State == machinev1.ControlPlaneMachineSetStateActive,
		Deleting: set.DeletionTimestamp != nil, Replicas: Replicas(set), Strategy: machineset.StrategyRollingUpdate,
		Taken: taken(set), PlatformFinalizer: slices.Contains(set.Finalizers, PlatformFinalizer), AutoRepair: set.Annotations[AutoRepairAnnotation] != "false",
		Places: make(map[string]machineset.Place, len(machines)),
	}
	if set.Spec.Strategy.Type == machinev1.OnDelete {
		s.Strategy = machineset.StrategyOnDelete
	}
	selector, t, err := parts(set, infra)
	if err != nil {
		s.Unusable = err.Error()
		return s
	}
	t.try(trial)
	for _, d := range t.domains {
		s.Domains = append(s.Domains, d.String())
	}
	for i := range machines {
		s.Places[string(machines[i].UID)] = place(&machines[i], selector, t)
	}
	return s
}

// parts are a set's selector and template. An error says why the set cannot be acted by.
func parts(set *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure) (labels.Selector, *template, error) {
	if set.Name != Name {
		return nil, nil, fmt.Errorf("its name is %q, and only %q is reconciled", set.Name, Name)
	}
	if err := checkReplicas(set); err != nil {
		return nil, nil, err
	}
	switch set.Spec.Strategy.Type {
	case machinev1.RollingUpdate, machinev1.OnDelete, "":
	default:
		return nil, nil, fmt.Errorf("spec.strategy.type is %q; it can be %s or %s", set.Spec.Strategy.Type, machinev1.RollingUpdate, machinev1.OnDelete)
	}
	selector, err := metav1.LabelSelectorAsSelector(&set.Spec.Selector)
	if err != nil {
		return nil, nil, fmt.Errorf("spec.selector: %w", err)
	}
	if selector.Empty() {
		return nil, nil, fmt.Errorf("spec.selector selects every Machine")
	}
	if !selectsControlPlane(selector) {
		return nil, nil, fmt.Errorf("spec.selector (%s) selects other Machines than the control plane's as well; have it ask for label %s or %s with value master", selector, quorum.RoleLabel, quorum.TypeLabel)
	}
	t, err := readTemplate(set, infra)
	if err != nil {
		return nil, nil, err
	}
	of := t.machine.ObjectMeta.Labels
	if !selector.Matches(labels.Set(of)) {
		return nil, nil, fmt.Errorf("spec.selector (%s) does not select what the template creates: its labels are %s", selector, labels.Set(of))
	}
	if !quorum.ControlPlaneRole(of[quorum.RoleLabel]) || !quorum.ControlPlaneRole(of[quorum.TypeLabel]) {
		return nil, nil, fmt.Errorf("the template's labels %s and %s are to say master", quorum.RoleLabel, quorum.TypeLabel)
	}
	if wrong := validation.IsDNS1123Subdomain(prefix(set, of)); len(wrong) > 0 {
		return nil, nil, fmt.Errorf("new Machines' names would begin with %q, which is no name of a Machine: %s; set spec.machineNamePrefix", prefix(set, of), strings.Join(wrong, ", "))
	}
	return selector, t, nil
}

// selectsControlPlane reports whether a selector selects no Machine but the control plane's.
func selectsControlPlane(selector labels.Selector) bool {
	for _, label := range [...]string{quorum.RoleLabel, quorum.TypeLabel} {
		if value, found := selector.RequiresExactMatch(label); found && quorum.ControlPlaneRole(value) {
			return true
		}
	}
	return false
}

// Wanted is what a set says of etcd's voters: its UID and its replicas alone. nil where Holdfast does not reconcile it. An error says why
// its replicas cannot be acted by.
func Wanted(set *machinev1.ControlPlaneMachineSet) (*machineset.Set, error) {
	if !Acts(set) {
		return nil, nil
	}
	return &machineset.Set{UID: string(set.UID), Replicas: Replicas(set)}, checkReplicas(set)
}

// Acts reports whether Holdfast reconciles a set.
func Acts(set *machinev1.ControlPlaneMachineSet) bool {
	return taken(set) && set.DeletionTimestamp == nil && set.Spec.State == machinev1.ControlPlaneMachineSetStateActive
}

func taken(set *machinev1.ControlPlaneMachineSet) bool {
	return slices.Contains(set.Finalizers, Finalizer)
}

// Replicas are how many Machines a set wants.
func Replicas(set *machinev1.ControlPlaneMachineSet) int { return int(ptr.Deref(set.Spec.Replicas, 3)) }

func checkReplicas(set *machinev1.ControlPlaneMachineSet) error {
	if n := Replicas(set); n < 1 || n > mostReplicas || n%2 == 0 {
		return fmt.Errorf("spec.replicas is %d; etcd wants 1, 3, 5 or 7", n)
	}
	return nil
}

// prefix is what the names of new Machines begin with, as the platform's operator names them.
func prefix(set *machinev1.ControlPlaneMachineSet, of map[string]string) string {
	if set.Spec.MachineNamePrefix != "" {
		return set.Spec.MachineNamePrefix
	}
	return strings.TrimPrefix(of[machinev1beta1.MachineClusterIDLabel]+"-"+of[quorum.RoleLabel], "-")
}

// place is what a set makes of a Machine.
func place(m *machinev1beta1.Machine, selector labels.Selector, t *template) machineset.Place {
	p := machineset.Place{Selected: selector.Matches(labels.Set(m.Labels)), Index: Index(m.Name), Error: said(m)}
	domain, differs, hash, err := t.compare(m.Spec)
	p.Domain = domain
	if err != nil {
		p.Unclear = err.Error()
		return p
	}
	p.Outdated = quorum.Clip(strings.Join(differs, "; "), 300)
	p.Fresh = hash != "" && m.Annotations[TemplateAnnotation] == hash
	return p
}

// said is the reason and the message that the machine controller wrote into a Machine's status, in one line.
func said(m *machinev1beta1.Machine) string {
	text := strings.Join(strings.Fields(ptr.Deref(m.Status.ErrorMessage, "")), " ")
	if reason := ptr.Deref(m.Status.ErrorReason, ""); reason != "" {
		text = strings.TrimSuffix(string(reason)+": "+text, ": ")
	}
	return quorum.Clip(text, 300)
}

// Index is the number at the end of a Machine's name, nil without one.
func Index(name string) *int {
	dash := strings.LastIndex(name, "-")
	n, err := strconv.ParseUint(name[dash+1:], 10, 31)
	if dash < 0 || err != nil {
		return nil
	}
	return new(int(n))
}
