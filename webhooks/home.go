package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Home is the handler for HomePath: the rule home, about the Machine namespace and the Machine CRD, and the rule keep-host about
// BareMetalHosts.
func (g *Handlers) Home() ctrladmission.Handler {
	return g.handler(home, func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		received := time.Now()
		if req.Kind.Group == "metal3.io" && req.Kind.Kind == "BareMetalHost" {
			return g.bareMetalHost(ctx, &req, received)
		}
		request, err := g.readHome(&req)
		if err != nil {
			return refused(err)
		}
		if request == nil {
			return ctrladmission.Allowed("")
		}
		machines, err := g.Observer.Machines(ctx)
		if err != nil {
			logger(ctx, &req).Error(err, "deciding without the Machines")
		}
		return g.conclude(ctx, &req, g.Identities.AdmitHome(request, machines, err == nil), nil, received)
	})
}

// bareMetalHost answers a request for a BareMetalHost. Most are a worker's, for which etcd is not asked.
func (g *Handlers) bareMetalHost(ctx context.Context, req *ctrladmission.Request, received time.Time) ctrladmission.Response {
	if req.SubResource != "" || req.Operation != admissionv1.Update && req.Operation != admissionv1.Delete {
		return ctrladmission.Allowed("")
	}
	r, err := machineapi.Host(req.OldObject.Raw, req.Object.Raw, g.MachineNamespace)
	if err != nil {
		return refused(err)
	}
	if r == nil {
		return ctrladmission.Allowed("")
	}
	r.User, r.At, r.MachineNamespace = user(req), received, g.MachineNamespace
	machines, err := g.Observer.Machines(ctx)
	m := &quorum.Machine{Name: r.Machine, Unread: "the Machines could not be listed"}
	if err == nil {
		i := slices.IndexFunc(machines, func(m quorum.Machine) bool { return m.Name == r.Machine })
		if i < 0 {
			return ctrladmission.Allowed("")
		}
		m = &machines[i]
	}
	s, err := g.Observer.Snapshot(ctx)
	if err != nil {
		logger(ctx, req).Error(err, "deciding without a look at the cluster")
		s, r.Unread = nil, err.Error()
	} else if fresh := s.Machine(r.Machine); fresh != nil {
		m = fresh
	}
	d := g.Identities.AdmitHost(r, m, s)
	g.claim(ctx, req, &d, s)
	return g.conclude(ctx, req, d, s, received)
}

// readHome is the request in quorum's terms, nil if it is about another namespace or CRD, or creates
// one. The name is the object's: a part of deletecollection has none in the request.
func (g *Handlers) readHome(req *ctrladmission.Request) (*admission.HomeRequest, error) {
	operation := operationOf(req)
	switch req.Operation {
	case admissionv1.Delete, admissionv1.Update:
	case admissionv1.Create, admissionv1.Connect:
		return nil, nil
	default:
		return nil, fmt.Errorf("Holdfast does not know the operation %q", req.Operation)
	}
	var old struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(req.OldObject.Raw, &old); err != nil {
		return nil, fmt.Errorf("the stored object cannot be read: %w", err)
	}
	name := old.Metadata.Name
	switch kind := req.Kind.Kind + "." + req.Kind.Group; {
	case req.SubResource != "":
		return nil, nil
	case kind == "Namespace.":
		if name != g.MachineNamespace || operation != admission.OperationDelete {
			return nil, nil
		}
		return &admission.HomeRequest{What: "namespace " + name, Operation: operation}, nil
	case kind == "CustomResourceDefinition.apiextensions.k8s.io":
		if name != machineapi.CRDName {
			return nil, nil
		}
		request := &admission.HomeRequest{What: "CustomResourceDefinition " + name, Operation: operation}
		if operation == admission.OperationUpdate {
			prunes, err := machineapi.LosesHooks(req.Object.Raw)
			if err != nil {
				return nil, err
			}
			request.Prunes = prunes
			if request.Changes, err = machineapi.Changes(req.OldObject.Raw, req.Object.Raw); err != nil {
				return nil, err
			}
			request.User = user(req)
		}
		return request, nil
	default:
		return nil, fmt.Errorf("Holdfast answers for namespaces and CustomResourceDefinitions here, and this AdmissionReview is about %s", about(req))
	}
}
