package quorum

import (
	"net/netip"
	"slices"
	"time"
)

// The names on a Machine that Holdfast and the Machine API agree on.
const (
	HookName   = "EtcdQuorumOperator"           // preDrain lifecycle hook
	HookOwner  = "clusteroperator/etcd"         // its owner; both name and owner count
	LatchName  = "EtcdQuorumLatch"              // preTerminate lifecycle hook, Holdfast's own
	LatchOwner = "holdfast"                     // its owner
	Finalizer  = "machine.machine.openshift.io" // the machine controller's

	EvidenceAnnotation   = "holdfast.dev/etcd-member"     // JSON of Evidence
	OverrideAnnotation   = "holdfast.dev/override"        // "<rule>: <reason>"
	OverrideByAnnotation = "holdfast.dev/override-by"     // the stamp: who set the override and when
	IdleAnnotation       = "holdfast.dev/hosts-no-member" // UID of a Machine whose member has left; nothing is decided by it
	GaveWayAnnotation    = "holdfast.dev/gave-way"        // on a Node: RFC 3339 time at which its learner gave way

	BootstrapName = "etcd-bootstrap" // of the etcd member that the installer's temporary host runs

	// RemediationAnnotation on a Machine has bare metal's actuator power the host off, delete the Node and power the host on again,
	// whatever the value.
	RemediationAnnotation = "host.metal3.io/external-remediation"

	RoleLabel = "machine.openshift.io/cluster-api-machine-role"
	TypeLabel = "machine.openshift.io/cluster-api-machine-type"
)

// ControlPlaneRoles are the values of RoleLabel and TypeLabel that mark a control-plane Machine.
func ControlPlaneRoles() []string { return []string{"master", "control-plane", "arbiter"} }

// ControlPlaneRole reports whether a value of RoleLabel or TypeLabel marks a control-plane Machine.
func ControlPlaneRole(value string) bool { return slices.Contains(ControlPlaneRoles(), value) }

const (
	EntryAbsent  Entry = 1 + iota // no entry of that name
	EntryOurs                     // name and owner are right
	EntryForeign                  // the name is there, with another owner
)

// Entry says what a lifecycle hook list holds under one name.
type Entry uint8

// Machine is a Machine as the guard sees it. Its zero value is no Machine.
type Machine struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitzero"`

	Role     string `json:"role,omitzero"`     // value of RoleLabel, "" without it
	Type     string `json:"type,omitzero"`     // value of TypeLabel, "" without it
	Mirrored bool   `json:"mirrored,omitzero"` // status.authoritativeAPI is set and not MachineAPI: stand down and report
	Unread   string `json:"unread,omitzero"`   // why it cannot be read, "" if it was; then only its metadata are known

	CreatedAt time.Time `json:"createdAt,omitzero"`
	DeletedAt time.Time `json:"deletedAt,omitzero"` // zero while the Machine is live

	Hook        Entry    `json:"hook,omitzero"`
	Latch       Entry    `json:"latch,omitzero"`
	Finalizer   bool     `json:"finalizer,omitzero"`
	Evidence    Evidence `json:"-"`                    // parsed from EvidenceAnnotation
	EvidenceRaw string   `json:"evidence,omitzero"`    // the annotation as it stands, "" without it
	Override    string   `json:"override,omitzero"`    // OverrideAnnotation as it stands
	OverrideBy  string   `json:"overrideBy,omitzero"`  // OverrideByAnnotation as it stands
	OtherHooks  []string `json:"otherHooks,omitempty"` // other lifecycle hooks, as "<name> of <owner>"
	Marked      bool     `json:"marked,omitzero"`      // it has its own IdleAnnotation
	Misspelled  string   `json:"misspelled,omitzero"`  // an annotation that looks like Holdfast's and means nothing to it, "" without one

	Owners []Owner `json:"owners,omitempty"`

	Remediating bool `json:"remediating,omitzero"` // it has RemediationAnnotation

	ProviderID string         `json:"providerID,omitzero"`
	Instance   InstanceValues `json:"instance,omitzero"`
	Phase      string         `json:"phase,omitzero"`      // status.phase: Provisioning, Provisioned, Running, Deleting, Failed
	NodeName   string         `json:"node,omitzero"`       // status.nodeRef.name
	Drained    bool           `json:"drained,omitzero"`    // the machine controller says that it has drained the Node, or does not drain it
	InstanceID bool           `json:"instanceID,omitzero"` // the status hints at an instance: addresses, or status.providerStatus names one, its state or the task that makes it
	// StatusInstances are the IDs of instances in status.providerStatus (instanceId, vmId or vmUUID, of any provider).
	StatusInstances []string     `json:"statusInstances,omitempty"`
	Addresses       []netip.Addr `json:"addresses,omitempty"`
	HostNames       []string     `json:"hostNames,omitempty"`
	Zone            string       `json:"zone,omitzero"` // failure domain: label machine.openshift.io/zone, else topology label of its Node
}

// Deleting reports whether the Machine has a deletionTimestamp.
func (m *Machine) Deleting() bool { return !m.DeletedAt.IsZero() }

// ControlPlane reports whether a role or type label marks it as a control-plane Machine.
func (m *Machine) ControlPlane() bool { return ControlPlaneRole(m.Role) || ControlPlaneRole(m.Type) }

// Protected reports whether hook, latch and finalizer stand: whatever happens to the Machine's
// deletion, its instance is not terminated before they go.
func (m *Machine) Protected() bool { return m.Hook == EntryOurs && m.Latch == EntryOurs && m.Finalizer }

// Held reports whether anything of etcd's holds the Machine: the hook, or after a person took that off, the latch.
func (m *Machine) Held() bool { return m.Hook == EntryOurs || m.Latch == EntryOurs }

// NeverHadInstance reports whether nothing about the Machine hints at an instance that could run a
// member. Empty addresses alone do not say so: a running Machine can lose them.
func (m *Machine) NeverHadInstance() bool {
	return m.Unread == "" && m.ProviderID == "" && m.NodeName == "" && !m.InstanceID && m.Instance == (InstanceValues{}) && len(m.StatusInstances) == 0 &&
		len(m.Addresses) == 0 && len(m.HostNames) == 0 && (m.EvidenceRaw == "" || m.EvidenceCopied()) &&
		(m.Phase == "" || m.Phase == "Provisioning" || m.Phase == "Deleting" || m.Phase == "Failed")
}

// WasRunning reports whether the Machine is Running or was before its deletion (a Node was linked to it).
func (m *Machine) WasRunning() bool {
	return m.Phase == "Running" || m.Deleting() && m.NodeName != ""
}

// Guarded reports whether a Machine is one of the control plane's, by its labels or by what holds it.
func (m *Machine) Guarded() bool { return m.ControlPlane() || m.Held() }

// DeletingUnheld reports whether the Machine is being deleted and has neither hook nor latch.
func (m *Machine) DeletingUnheld() bool { return m.Deleting() && !m.Held() && m.Unread == "" }
