package webhooks

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// SetsAndHealthChecks is the handler for KeepersPath: what creates and deletes Machines, MachineSets (rule adopt)
// and MachineHealthChecks (rule health-check). It refuses neither, because the Machines are guarded
// one by one, and warns. So it is not served by Handler: what is too large to be read passes.
func (g *Handlers) SetsAndHealthChecks() ctrladmission.Handler {
	return g.handler(keepers, func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		received := time.Now()
		if req.Namespace != g.MachineNamespace || req.SubResource != "" || req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
			return ctrladmission.Allowed("")
		}
		d, err := g.setOrHealthCheck(ctx, &req)
		if err != nil {
			return refused(err)
		}
		return g.conclude(ctx, &req, d, nil, received)
	})
}

// setOrHealthCheck is the part of both kinds that the rules look at.
type setOrHealthCheck struct {
	Metadata struct {
		Name         string            `json:"name"`
		GenerateName string            `json:"generateName"`
		Annotations  map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Selector metav1.LabelSelector `json:"selector"`
		Template struct {
			Metadata struct {
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		} `json:"template"`
		MaxUnhealthy        *intstr.IntOrString `json:"maxUnhealthy"`
		RemediationTemplate *struct{}           `json:"remediationTemplate"`
	} `json:"spec"`
}

// setOrHealthCheck decides about a MachineSet or a MachineHealthCheck.
func (g *Handlers) setOrHealthCheck(ctx context.Context, req *ctrladmission.Request) (admission.Decision, error) {
	kind := req.Kind.Kind
	if req.Kind.Group != machinev1beta1.GroupName || kind != "MachineSet" && kind != "MachineHealthCheck" {
		return admission.Decision{}, fmt.Errorf("Holdfast answers for MachineSets and MachineHealthChecks here, and this AdmissionReview is about %s", about(req))
	}
	var k setOrHealthCheck
	if err := utiljson.Unmarshal(req.Object.Raw, &k); err != nil {
		log.FromContext(ctx).Error(err, "passing what cannot be read", "kind", kind)
		return admission.Decision{}, nil
	}
	name := cmp.Or(k.Metadata.Name, k.Metadata.GenerateName)
	selector, err := metav1.LabelSelectorAsSelector(&k.Spec.Selector)
	if err != nil || kind == "MachineSet" && selector.Empty() {
		selector = labels.Nothing() // as its controller takes it
	}
	selected := &quorum.Selection{}
	if _, selects := selector.Requirements(); selects {
		if found, err := g.Observer.Selected(ctx, selector); err == nil {
			selected = found
		} else {
			log.FromContext(ctx).Error(err, "deciding without the Machines")
		}
	}
	if kind == "MachineSet" {
		made := k.Spec.Template.Metadata.Labels
		return admission.AdmitSet(&admission.SetRequest{
			Namespace: req.Namespace, Name: name, Template: quorum.Machine{Role: made[quorum.RoleLabel], Type: made[quorum.TypeLabel]},
		}, selected), nil
	}
	r := &admission.HealthCheckRequest{
		Namespace: req.Namespace, Name: name,
		External: k.Spec.RemediationTemplate != nil || k.Metadata.Annotations[remediation] != "",
		Fresh:    selector.Matches(labels.Set{quorum.RoleLabel: "master", quorum.TypeLabel: "master"}),
	}
	var ok bool
	if r.MaxUnhealthy, r.Percent, ok = maxUnhealthy(k.Spec.MaxUnhealthy); !ok {
		return admission.Decision{}, nil // its controller does nothing with such a value
	}
	return admission.AdmitHealthCheck(r, selected), nil
}

// remediation is the annotation of a MachineHealthCheck that leaves the Machines to somebody else.
const remediation = "machine.openshift.io/remediation-strategy"

// maxUnhealthy is the value as machine-api-operator reads it: 100 % without one, and a text without a
// per cent sign is a number.
func maxUnhealthy(value *intstr.IntOrString) (n int, percent, ok bool) {
	switch {
	case value == nil:
		return 100, true, true
	case value.Type == intstr.Int:
		return value.IntValue(), false, true
	}
	text, percent := strings.CutSuffix(value.StrVal, "%")
	n, err := strconv.Atoi(text)
	return n, percent, err == nil
}
