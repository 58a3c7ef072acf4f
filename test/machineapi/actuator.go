package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/openshift/machine-api-operator/pkg/controller/machine"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	providerAPIVersion = "process.holdfast.dev/v1"
	providerSpecKind   = "ProcessMachineProviderSpec"
	awsAPIVersion      = "machine.openshift.io/v1beta1" // for what knows failure domains of real platforms alone
	awsSpecKind        = "AWSMachineProviderConfig"
	providerStatusKind = "ProcessMachineProviderStatus"

	roleLabel = "machine.openshift.io/cluster-api-machine-role"

	// nodelinkGrace is the age of a Node that the nodelink controller should have linked.
	nodelinkGrace = 2 * time.Second
)

// providerSpec is a Machine's spec.providerSpec.value.
type providerSpec struct {
	APIVersion   string `json:"apiVersion"`
	Kind         string `json:"kind"`
	InstanceType string `json:"instanceType"`
	Placement    struct {
		AvailabilityZone string `json:"availabilityZone"` // "" for any
	} `json:"placement"`
}

// providerStatus is a Machine's status.providerStatus.
type providerStatus struct {
	APIVersion    string `json:"apiVersion"`
	Kind          string `json:"kind"`
	InstanceID    string `json:"instanceId"`
	InstanceState string `json:"instanceState"`
}

// actuator is the "process" provider: what the machine controller calls to have
// an instance made, found and ended.
type actuator struct {
	cloud  *cloud
	client client.Client
	events record.EventRecorder
}

var _ machine.Actuator = (*actuator)(nil)

// Create makes the Machine's instance and writes down what it is. What a person
// can repair in the Machine only is an InvalidMachineConfiguration, which fails
// the Machine for good; all else is tried again.
func (a *actuator) Create(ctx context.Context, m *machinev1beta1.Machine) error {
	made, err := a.create(ctx, m)
	if err != nil {
		a.events.Event(m, corev1.EventTypeWarning, "FailedCreate", err.Error())
		return err
	}
	a.events.Eventf(m, corev1.EventTypeNormal, "Created", "Created instance %s at %s", made.ID, made.Address)
	return a.record(ctx, m, made)
}

func (a *actuator) create(ctx context.Context, m *machinev1beta1.Machine) (*instance, error) {
	spec, err := parseProviderSpec(m.Spec.ProviderSpec.Value)
	if err != nil {
		return nil, machine.InvalidMachineConfiguration("%v", err)
	}
	made, err := a.cloud.create(ctx, m.Name, spec.InstanceType, spec.Placement.AvailabilityZone, m.Labels[roleLabel])
	if refused := (*cloudError)(nil); errors.As(err, &refused) && refused.Status == http.StatusBadRequest {
		return nil, machine.InvalidMachineConfiguration("%s", refused.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the instance of Machine %s: %w", m.Name, err)
	}
	return made, nil
}

// Exists says whether the Machine has an instance, ending ones included.
func (a *actuator) Exists(ctx context.Context, m *machinev1beta1.Machine) (bool, error) {
	found, err := a.find(ctx, m)
	return found != nil, err
}

// Update writes down what has become of the instance. A changed instance type
// in the Machine changes nothing: it takes a new Machine, as in a real cloud.
func (a *actuator) Update(ctx context.Context, m *machinev1beta1.Machine) error {
	found, err := a.find(ctx, m)
	if err != nil {
		return err
	}
	if found == nil {
		return fmt.Errorf("the instance of Machine %s has gone", m.Name)
	}
	if err := a.record(ctx, m, found); err != nil {
		return err
	}
	if err := a.linkNode(ctx, m); err != nil {
		return err
	}
	return a.remediate(ctx, m, found)
}

// Delete begins the end of the Machine's instance. The machine controller then
// asks Exists, and comes again while the answer is yes.
func (a *actuator) Delete(ctx context.Context, m *machinev1beta1.Machine) error {
	found, err := a.find(ctx, m)
	if err != nil || found == nil {
		return err
	}
	if err := a.cloud.terminate(ctx, found.Name); err != nil {
		return fmt.Errorf("terminating the instance of Machine %s: %w", m.Name, err)
	}
	return nil
}

// find returns the Machine's instance, nil if it has none: the one whose ID its
// status holds, and before there is an ID the one of its name. Real providers
// trust the status as well, so who writes another instance's ID into it has that
// one terminated.
func (a *actuator) find(ctx context.Context, m *machinev1beta1.Machine) (*instance, error) {
	id := parseProviderStatus(m.Status.ProviderStatus).InstanceID
	if id == "" {
		found, err := a.cloud.get(ctx, m.Name)
		if err != nil {
			return nil, fmt.Errorf("looking for the instance of Machine %s: %w", m.Name, err)
		}
		return found, nil
	}
	all, err := a.cloud.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for instance %s of Machine %s: %w", id, m.Name, err)
	}
	for i := range all {
		if all[i].ID == id {
			return &all[i], nil
		}
	}
	return nil, nil
}

// record writes the instance into the Machine, and writes nothing that is there
// already. If it fails between its two writes, the next Update does the rest.
func (a *actuator) record(ctx context.Context, m *machinev1beta1.Machine, of *instance) error {
	before := m.DeepCopy()
	m.Spec.ProviderID = &of.ProviderID
	setEntry(&m.Labels, machine.MachineInstanceTypeLabelName, of.Type)
	setEntry(&m.Labels, machine.MachineAZLabelName, of.Zone)
	setEntry(&m.Annotations, machine.MachineInstanceStateAnnotationName, of.State)
	if !equality.Semantic.DeepEqual(before, m) {
		if err := a.client.Patch(ctx, m, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("writing instance %s into Machine %s: %w", of.ID, m.Name, err)
		}
	}

	before = m.DeepCopy()
	m.Status.Addresses = addresses(of)
	status := providerStatus{
		APIVersion: providerAPIVersion, Kind: providerStatusKind,
		InstanceID: of.ID, InstanceState: of.State,
	}
	// Compared as a value: the API server orders the JSON in its own way.
	if parseProviderStatus(m.Status.ProviderStatus) != status {
		raw, err := json.Marshal(status)
		if err != nil {
			return fmt.Errorf("providerStatus of Machine %s: %w", m.Name, err)
		}
		m.Status.ProviderStatus = &runtime.RawExtension{Raw: raw}
	}
	if !equality.Semantic.DeepEqual(before, m) {
		if err := a.client.Status().Patch(ctx, m, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("writing instance %s into the status of Machine %s: %w", of.ID, m.Name, err)
		}
	}
	return nil
}

// linkNode repairs what the nodelink controller misses: it remembers by name
// which Nodes were ready, so one that is ready at first sight under the name of
// an earlier one (a host installed again) is never linked. The machine controller
// asks for an Update twice a second while the link is missing.
func (a *actuator) linkNode(ctx context.Context, m *machinev1beta1.Machine) error {
	if m.Status.NodeRef != nil {
		return nil
	}
	var node corev1.Node
	err := a.client.Get(ctx, client.ObjectKey{Name: m.Name}, &node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for the Node of Machine %s: %w", m.Name, err)
	}
	if node.Spec.ProviderID != *m.Spec.ProviderID || time.Since(node.CreationTimestamp.Time) < nodelinkGrace {
		return nil
	}
	before := m.DeepCopy()
	m.Status.NodeRef = &corev1.ObjectReference{Kind: "Node", Name: node.Name, UID: node.UID}
	if err := a.client.Status().Patch(ctx, m, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("linking Node %s to Machine %s: %w", node.Name, m.Name, err)
	}
	return nil
}

func addresses(of *instance) []corev1.NodeAddress {
	if of.Address == "" {
		return nil
	}
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: of.Address},
		{Type: corev1.NodeInternalDNS, Address: of.Name},
		{Type: corev1.NodeHostName, Address: of.Name},
	}
}

func setEntry(entries *map[string]string, key, value string) {
	if *entries == nil {
		*entries = map[string]string{}
	}
	(*entries)[key] = value
}

func parseProviderSpec(value *runtime.RawExtension) (providerSpec, error) {
	var spec providerSpec
	if value == nil {
		return spec, errors.New("spec.providerSpec.value must be set")
	}
	if err := json.Unmarshal(value.Raw, &spec); err != nil {
		return spec, fmt.Errorf("spec.providerSpec.value cannot be read: %w", err)
	}
	own := spec.APIVersion == providerAPIVersion && spec.Kind == providerSpecKind
	if aws := spec.APIVersion == awsAPIVersion && spec.Kind == awsSpecKind; !own && !aws {
		return spec, fmt.Errorf("spec.providerSpec.value must be a %s of %s, not a %q of %q",
			providerSpecKind, providerAPIVersion, spec.Kind, spec.APIVersion)
	}
	if spec.InstanceType == "" {
		return spec, errors.New("spec.providerSpec.value.instanceType must be set, to m5.large say")
	}
	return spec, nil
}

// parseProviderStatus reads what record wrote; zero if it is not that.
func parseProviderStatus(value *runtime.RawExtension) providerStatus {
	var status providerStatus
	if value == nil || json.Unmarshal(value.Raw, &status) != nil {
		return providerStatus{}
	}
	return status
}
