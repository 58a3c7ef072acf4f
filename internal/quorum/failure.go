package quorum

import (
	"fmt"
	"time"
)

// Failure is something that is tried again and again, and does not get done.
type Failure struct {
	Reason  string    `json:"reason"`           // of its Note: ActionFails, MembershipNotPublished, ConditionsNotTold or MachineCRDUnfit
	What    string    `json:"what"`             // an Action as Describe has it, or the object that is not published
	Machine string    `json:"machine,omitzero"` // "" if it is about no Machine in particular
	Since   time.Time `json:"since,omitzero"`
	Why     string    `json:"why,omitzero"`
	Refused bool      `json:"refused,omitzero"` // by etcd, to add a member: its leader is not connected to enough voters
}

// FailsAfter is for how long something must fail to be reported: an election of etcd's is shorter.
const FailsAfter = 10 * time.Second

// String is what does not get done, since when, and why not.
func (f *Failure) String() string {
	return fmt.Sprintf("%s has failed since %s: %s", f.What, f.Since.UTC().Format(time.RFC3339), f.Why)
}
