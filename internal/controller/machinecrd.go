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

// How soon the Machine CRD is looked at again: once it was read, and where it could not be.
const (
	crdEvery = 10 * time.Minute
	crdAgain = 10 * time.Second
)

// machineCRD looks at the Machine CRD, because rule home lets the cluster-version operator change it. The zero value is ready.
type machineCRD struct {
	next time.Time // look
	attempts
}

func (c *machineCRD) look(ctx context.Context, api client.Reader, now time.Time) {
	if now.Before(c.next) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, observe.APITimeout)
	defer cancel()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	err := api.Get(ctx, client.ObjectKey{Name: machineapi.CRDName}, crd)
	unread := err != nil
	if c.next = now.Add(crdAgain); !unread {
		c.next = now.Add(crdEvery)
		raw, _ := crd.MarshalJSON() // it was read as JSON
		err = machineapi.Unfit(raw)
	}
	c.after(quorum.Failure{Reason: string(membership.ReasonMachineCRDUnfit), What: "use the CustomResourceDefinition of Machines"}, now, err, unread)
}
