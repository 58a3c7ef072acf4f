package machineset

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Set is a ControlPlaneMachineSet as the plan sees it. The zero value is no set.
type Set struct {
	Name string `json:"name"`
	UID  string `json:"uid"`

	Active bool `json:"active,omitzero"` // spec.state: nothing is done while it is Inactive
	Taken  bool `json:"taken,omitzero"`  // it has Holdfast's finalizer: Holdfast reconciles it
	// PlatformFinalizer: it has the finalizer of the platform's operator, which Holdfast's replaces and makes room for again.
	PlatformFinalizer bool `json:"platformFinalizer,omitzero"`

	Deleting bool     `json:"deleting,omitzero"` // it has a deletionTimestamp
	Replicas int      `json:"replicas"`
	Strategy Strategy `json:"strategy"`

	// Domains are the failure domains, each in the words of the platform's library; none: new Machines are where the template says.
	Domains []string `json:"domains,omitempty"`

	// Unusable is why the set cannot be acted by, for people; "" if it can.
	Unusable string `json:"unusable,omitzero"`
	// OtherOperator is what shows that the platform's operator is there to reconcile the set, "" where nothing does.
	OtherOperator string `json:"otherOperator,omitzero"`
	// OperatorWhy is why it is not known whether that operator is there, "" if it is.
	OperatorWhy string `json:"operatorWhy,omitzero"`
	// AutoRepair: a MachineHealthCheck of the set's deletes the Machines of hosts that died.
	AutoRepair bool `json:"autoRepair,omitzero"`

	// NotBefore is when a Machine may be created again after creations from this template that failed; zero is at any time.
	NotBefore time.Time `json:"notBefore,omitzero"`
	// CreationFailure is how the last creation failed, for people; "" if it did not, or that is not known.
	CreationFailure string `json:"creationFailure,omitzero"`

	// Places is what the set makes of each control-plane Machine, by the Machine's UID. Of one without a place nothing is known.
	Places map[string]Place `json:"places,omitempty"`
}

// Strategy is when a Machine that differs from the template is replaced.
type Strategy uint8

const (
	StrategyRollingUpdate Strategy = 1 + iota // one after the other
	StrategyOnDelete                          // once somebody has deleted it
)

// Place is what a set makes of one Machine.
type Place struct {
	Selected bool   `json:"selected,omitzero"` // the set's selector selects it
	Index    *int   `json:"index,omitzero"`    // the number at the end of its name; nil without one
	Domain   string `json:"domain,omitzero"`   // its failure domain, "" if the platform has none
	Outdated string `json:"outdated,omitzero"` // how it differs from the template, for people; "" if it does not
	Fresh    bool   `json:"fresh,omitzero"`    // the set created it from the template as it is now
	Unclear  string `json:"unclear,omitzero"`  // why it cannot be compared with the template, for people; "" if it can
	Error    string `json:"error,omitzero"`    // what its status says is wrong, for people; "" for nothing
}

// place is what is known of a Machine's place.
func (s *Set) place(m *quorum.Machine) Place {
	if p, ok := s.Places[m.UID]; ok {
		return p
	}
	return Place{Unclear: "its spec has not been read"}
}

// owns reports whether the set is the Machine's controller.
func (s *Set) owns(m *quorum.Machine) bool {
	c := m.Controller()
	return c != nil && c.UID == s.UID
}

// Reconciled reports whether Holdfast acts by the set: its replicas then say how many voters are wanted.
func (s *Set) Reconciled() bool {
	return s.Taken && s.Active && !s.Deleting && s.OtherOperator == "" && s.OperatorWhy == "" && s.Unusable == ""
}
