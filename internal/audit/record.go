package audit

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Record is a decision with everything that somebody may ask about it later.
type Record struct {
	RequestUID   types.UID // the AdmissionRequest's
	Received     time.Time // when Holdfast was asked
	User         authenticationv1.UserInfo
	Operation    admission.Operation
	Object       auditapi.ObjectReference // of the stored object, or of the new one on CREATE
	FieldManager string                   // "" for DELETE, or where the client sent none
	DryRun       bool
	Abandoned    bool // the API server no longer waited for the answer: what became of the request is not known

	Decision             admission.Decision
	Enforcement          admission.Enforcement // what became of the verdicts
	Override, OverrideBy string                // the object's override as it stood before the request, and the user who set it, without the time
	ReleaseReason        string                // why a person releases it, in that person's words, as the request has it; "" without

	Snapshot *quorum.Snapshot // what was decided on; nil where the request was enough
}

// The annotations of an Event of ours. Rule and Verdict are lists by comma, an element for each
// finding, with the same words as in the API server's own record.
const (
	RuleAnnotation         = "holdfast.dev/rule"
	VerdictAnnotation      = "holdfast.dev/verdict"
	FieldManagerAnnotation = "holdfast.dev/field-manager"
	// AbandonedAnnotation is "true" on a decision that the API server gave up on: the failure policy decided instead.
	AbandonedAnnotation = "holdfast.dev/abandoned"
	// ReleaseReasonAnnotation is why a person released the Machine: on the Machine itself, where kubectl
	// holdfast release writes it, and on the record of that release.
	ReleaseReasonAnnotation = "holdfast.dev/release-reason"
	// EnforcementAnnotation is warn or audit on a decision that was not enforced: the request passed as it was.
	EnforcementAnnotation = "holdfast.dev/enforcement"
	OverrideAnnotation    = quorum.OverrideAnnotation
	OverrideByAnnotation  = quorum.OverrideByAnnotation
	// EvidenceAnnotation is the JSON of Evidence.
	EvidenceAnnotation = "holdfast.dev/evidence"
	// RepeatedAnnotation, on a record that stands for several, is how many; the Event is the last of them.
	RepeatedAnnotation = "holdfast.dev/repeated"
	// RepeatedSinceAnnotation is the time of the first of those, RFC 3339.
	RepeatedSinceAnnotation = "holdfast.dev/repeated-since"
)

// Evidence is what Holdfast saw of the cluster when it decided.
type Evidence struct {
	At         time.Time `json:"at,omitzero"`          // when it was read
	Desired    int       `json:"desired,omitempty"`    // voters wanted, 0 if that is not known
	DesiredWhy string    `json:"desiredWhy,omitempty"` // why it is not
	Voters     int       `json:"voters,omitempty"`
	Healthy    int       `json:"healthy,omitempty"` // of the voters
	Members    []Member  `json:"members,omitempty"`
	Unknown    string    `json:"unknown,omitempty"`  // why the members are not known
	Deleting   []string  `json:"deleting,omitempty"` // Machines that are being deleted
}

// Member is an etcd member in Evidence.
type Member struct {
	ID      string `json:"id"` // hex
	Name    string `json:"name,omitempty"`
	Machine string `json:"machine,omitempty"` // that hosts it, if that is one for sure
	Learner bool   `json:"learner,omitempty"`
	Leader  bool   `json:"leader,omitempty"`
	Healthy bool   `json:"healthy"`
	Why     string `json:"why,omitempty"` // why it is not healthy
}

func evidenceOf(s *quorum.Snapshot) Evidence {
	e := Evidence{At: s.Now, Desired: s.Desired, DesiredWhy: s.DesiredWhy}
	if s.Ring.Known {
		e.Voters, e.Healthy = s.Ring.Voters()
		join := quorum.NewJoin(s)
		for k := range s.Ring.Members {
			m := &s.Ring.Members[k]
			member := Member{
				ID: m.ID.Hex(), Name: m.Name, Learner: m.Learner,
				Leader: m.ID == s.Ring.Leader, Healthy: m.Healthy, Why: m.Why,
			}
			if on := join.Host(m).Machine(); on != nil {
				member.Machine = on.Name
			}
			e.Members = append(e.Members, member)
		}
	} else {
		e.Unknown = s.Ring.Why // "" where the decision did not ask etcd
	}
	for i := range s.Machines {
		if s.Machines[i].Deleting() {
			e.Deleting = append(e.Deleting, s.Machines[i].Name)
		}
	}
	return e
}

// event is the record in the API server's form. What the API server knows and a webhook does not get
// stays empty: request URI, source address, user agent, and the verb patch, which comes as an update.
func (r *Record) event(now time.Time) *auditapi.Event {
	var rules, verdicts, said []string
	for _, f := range r.Decision.Findings {
		rules, verdicts, said = append(rules, string(f.Rule)), append(verdicts, f.Verdict.String()), append(said, f.Lines...)
	}
	object := r.Object
	e := newEvent(r.RequestUID, r.Operation.String(), strings.Join(said, "\n"), r.Received, now, r.Snapshot)
	e.User, e.ObjectRef = r.User, &object
	e.Annotations[RuleAnnotation], e.Annotations[VerdictAnnotation] = strings.Join(rules, ","), strings.Join(verdicts, ",")
	if r.Enforcement != admission.Enforce {
		e.Annotations[EnforcementAnnotation] = r.Enforcement.String()
	} else if r.Decision.Denial() != nil {
		e.ResponseStatus.Status, e.ResponseStatus.Code = metav1.StatusFailure, http.StatusForbidden
		e.ResponseStatus.Reason = metav1.StatusReasonForbidden
	}
	for key, value := range map[string]string{
		FieldManagerAnnotation: r.FieldManager, OverrideAnnotation: r.Override, OverrideByAnnotation: r.OverrideBy,
		ReleaseReasonAnnotation: r.ReleaseReason,
	} {
		if value != "" {
			e.Annotations[key] = value
		}
	}
	if r.Abandoned {
		e.Annotations[AbandonedAnnotation] = "true"
	}
	return e
}

// newEvent is an Event of something that went well, with what was seen, if anything.
func newEvent(id types.UID, verb, said string, received, now time.Time, s *quorum.Snapshot) *auditapi.Event {
	annotations := map[string]string{}
	if s != nil {
		evidence, _ := json.Marshal(evidenceOf(s)) // texts, numbers and times: it has no error
		annotations[EvidenceAnnotation] = string(evidence)
	}
	return &auditapi.Event{
		Level:                    auditapi.LevelMetadata,
		Stage:                    auditapi.StageResponseComplete,
		AuditID:                  id,
		Verb:                     strings.ToLower(verb),
		ResponseStatus:           &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK, Message: said},
		RequestReceivedTimestamp: metav1.NewMicroTime(received),
		StageTimestamp:           metav1.NewMicroTime(now),
		Annotations:              annotations,
	}
}
