package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	admissionv1 "k8s.io/api/admission/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/cpms"
)

// trialTimeout is how long the trial of a set's Machines may take, well below what the API server waits for an answer.
const trialTimeout = 2 * time.Second

// ControlPlaneSet is the handler for ControlPlaneSetPath: the rules control-plane-set and scale-in, about the ControlPlaneMachineSet that
// Holdfast reconciles in full mode. api is without a cache; the Machines that the set would create are tried with it in a dry run, so that the
// platform's own checks of a provider spec have their say.
func (g *Handlers) ControlPlaneSet(api client.Client) ctrladmission.Handler {
	return g.handler(controlPlaneSet, func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		received := time.Now()
		scale := req.SubResource == "scale" && req.Operation == admissionv1.Update
		if !scale && (req.Kind.Group != machinev1.GroupName || req.Kind.Kind != "ControlPlaneMachineSet") {
			return refused(fmt.Errorf("Holdfast answers for ControlPlaneMachineSets here, and this AdmissionReview is about %s", about(&req)))
		}
		if req.Namespace != g.MachineNamespace || req.SubResource != "" && !scale {
			return ctrladmission.Allowed("")
		}
		old, set, err := setsOf(&req)
		if scale {
			old, set, err = scaled(ctx, api, &req)
		}
		if err != nil {
			return refused(err)
		}
		var asked *admission.ControlPlaneSetRequest
		switch {
		case old != nil && set != nil && slices.Contains(old.Finalizers, cpms.Finalizer) && !slices.Contains(set.Finalizers, cpms.Finalizer) && g.Identities.Classify(user(&req)) != admission.ClassCustodian:
			asked = &admission.ControlPlaneSetRequest{Namespace: old.Namespace, Name: old.Name, Finalizer: cpms.Finalizer}
		case set == nil && old != nil:
			asked = &admission.ControlPlaneSetRequest{Namespace: old.Namespace, Name: old.Name, Foreground: slices.Contains(old.Finalizers, cpms.Finalizer) && inForeground(&req, old)}
		case set == nil || set.DeletionTimestamp != nil || old != nil && equality.Semantic.DeepEqual(old.Spec, set.Spec):
			return ctrladmission.Allowed("")
		default:
			if asked = new(admission.ControlPlaneSetRequest); !scale {
				asked = trySet(ctx, api, old, set)
			}
		}
		d := admission.AdmitControlPlaneSet(asked)
		if d.Denial() == nil {
			g.admitScale(ctx, &d, &req, old, set)
		}
		return g.conclude(ctx, &req, d, nil, received)
	})
}

// admitScale asks the rule scale-in where Holdfast reconciles a set by the request. One that is about to be reconciled takes Machines away
// where it wants fewer than there are.
func (g *Handlers) admitScale(ctx context.Context, d *admission.Decision, req *ctrladmission.Request, old, set *machinev1.ControlPlaneMachineSet) {
	if set == nil {
		if cpms.Acts(old) {
			g.Identities.AdmitScale(d, &admission.ScaleRequest{Namespace: old.Namespace, Name: old.Name, User: user(req), Deletes: true})
		}
		return
	}
	if set.Spec.State != machinev1.ControlPlaneMachineSetStateActive {
		return
	}
	r := &admission.ScaleRequest{
		Namespace: set.Namespace, Name: set.Name, User: user(req), To: cpms.Replicas(set),
	}
	if r.Starts = old == nil || !cpms.Acts(old); !r.Starts {
		r.From = cpms.Replicas(old)
	} else if machines, err := g.Observer.Machines(ctx); err != nil {
		r.FromWhy = err.Error()
	} else {
		for i := range machines {
			if machines[i].ControlPlane() && !machines[i].Deleting() {
				r.From++
			}
		}
	}
	g.Identities.AdmitScale(d, r)
}

// scaled are the stored set and the new one of a request for the subresource scale. They differ in the replicas alone.
func scaled(ctx context.Context, api client.Client, req *ctrladmission.Request) (old, set *machinev1.ControlPlaneMachineSet, err error) {
	var was, is autoscalingv1.Scale
	if err := errors.Join(utiljson.Unmarshal(req.OldObject.Raw, &was), utiljson.Unmarshal(req.Object.Raw, &is)); err != nil {
		return nil, nil, fmt.Errorf("the Scale of the ControlPlaneMachineSet cannot be read: %w", err)
	}
	old = &machinev1.ControlPlaneMachineSet{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: was.Name}, old); err != nil {
		return nil, nil, fmt.Errorf("read ControlPlaneMachineSet %s: %w", was.Name, err)
	}
	set = old.DeepCopy()
	old.Spec.Replicas, set.Spec.Replicas = &was.Spec.Replicas, &is.Spec.Replicas
	return old, set, nil
}

// inForeground reports whether a DELETE is with foreground propagation: the request says so, or says nothing, and the set has been prepared for
// it. What the request says goes first, so a person can still end a deletion of that kind.
func inForeground(req *ctrladmission.Request, set *machinev1.ControlPlaneMachineSet) bool {
	var options metav1.DeleteOptions
	if err := utiljson.Unmarshal(req.Options.Raw, &options); err == nil && options.PropagationPolicy != nil {
		return *options.PropagationPolicy == metav1.DeletePropagationForeground
	}
	return slices.Contains(set.Finalizers, metav1.FinalizerDeleteDependents)
}

// setsOf are the stored set and the new one; the first is nil on CREATE, the second on DELETE, and both where nothing is written.
func setsOf(req *ctrladmission.Request) (old, set *machinev1.ControlPlaneMachineSet, err error) {
	if req.Operation == admissionv1.Update || req.Operation == admissionv1.Delete {
		old = &machinev1.ControlPlaneMachineSet{}
		if err := utiljson.Unmarshal(req.OldObject.Raw, old); err != nil {
			return nil, nil, fmt.Errorf("the stored ControlPlaneMachineSet cannot be read: %w", err)
		}
	}
	if req.Operation == admissionv1.Create || req.Operation == admissionv1.Update {
		set = &machinev1.ControlPlaneMachineSet{}
		if err := utiljson.Unmarshal(req.Object.Raw, set); err != nil {
			return nil, nil, fmt.Errorf("the new ControlPlaneMachineSet cannot be read: %w", err)
		}
	}
	return old, set, nil
}

// trySet finds out whether a set could be acted by.
func trySet(ctx context.Context, api client.Client, old, set *machinev1.ControlPlaneMachineSet) *admission.ControlPlaneSetRequest {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	r := &admission.ControlPlaneSetRequest{Namespace: set.Namespace, Name: set.Name}
	infra := &configv1.Infrastructure{}
	if err := api.Get(ctx, client.ObjectKey{Name: "cluster"}, infra); apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		infra = nil
	} else if err != nil {
		r.Unknown = fmt.Sprintf("read Infrastructure cluster: %v", err)
		return r
	}
	machines, err := cpms.Check(old, set, infra)
	if err != nil {
		r.Why = err.Error()
		return r
	}
	for _, m := range machines {
		switch err := api.Create(ctx, m, client.DryRunAll); {
		case err == nil:
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
			r.Why = fmt.Sprintf("a Machine of its template was refused in a trial: %v", err)
			return r
		default:
			r.Unknown = fmt.Sprintf("create a Machine in a dry run: %v", err)
		}
	}
	return r
}
