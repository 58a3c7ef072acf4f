package controller

import (
	"context"
	"fmt"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
)

// page is how many Machines are read at a time where there may be thousands.
const page = 500

// Selected is what a selector meets in the Machine namespace, live. It reads their metadata alone.
func (g *Gatherer) Selected(ctx context.Context, selector labels.Selector) (*admission.Selection, error) {
	ctx, cancel := context.WithTimeout(ctx, apiBound)
	defer cancel()
	s := &admission.Selection{}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind("MachineList"))
	for more := true; more; more = list.Continue != "" {
		if err := g.API.List(ctx, list, client.InNamespace(g.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.Limit(page), client.Continue(list.Continue)); err != nil {
			return nil, fmt.Errorf("list Machines in namespace %s: %w", g.Namespace, err)
		}
		s.Total += len(list.Items)
		for i := range list.Items {
			if m := machineapi.Machine(&machinev1beta1.Machine{ObjectMeta: list.Items[i].ObjectMeta}); m.ControlPlane() {
				s.Machines = append(s.Machines, m)
			}
		}
	}
	var err error
	s.Desired, _, err = g.desired(ctx)
	return s, err
}
