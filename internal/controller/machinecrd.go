package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// crdEvery is how often the Machine CRD is looked at.
const crdEvery = 10 * time.Minute

// machineCRD looks at the Machine CRD, because rule home lets the cluster-version operator change it. The zero value is ready.
type machineCRD struct {
	at time.Time // of the last look
	attempts
}

func (c *machineCRD) look(ctx context.Context, api client.Reader, now time.Time) {
	if now.Before(c.at.Add(crdEvery)) {
		return
	}
	c.at = now
	ctx, cancel := context.WithTimeout(ctx, observe.APITimeout)
	defer cancel()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	err := api.Get(ctx, client.ObjectKey{Name: machineapi.CRDName}, crd)
	if err == nil {
		raw, _ := crd.MarshalJSON() // it was read as JSON
		err = machineapi.Unfit(raw)
	}
	c.after(quorum.Failure{Reason: string(membership.ReasonMachineCRDUnfit), What: "use the CustomResourceDefinition of Machines"}, now, err, false)
}
