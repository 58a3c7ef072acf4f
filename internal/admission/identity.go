package admission

import (
	"slices"
	"strings"
)

// User is who sent a request, as the API server authenticated them.
type User struct {
	Name   string
	Groups []string
}

// Class is what a User is to the rules.
type Class uint8

const (
	ClassPerson     Class = 1 + iota // everyone else: what a person does is manual intervention
	ClassAutomation                  // service accounts, nodes, control-plane components, and who was added
	ClassCustodian                   // may put the hook on and release it
)

func (c Class) String() string {
	return [...]string{ClassPerson: "person", ClassAutomation: "automation", ClassCustodian: "custodian"}[c]
}

// Identities distinguish custodians, automation and people. An entry of Automation and EscapeHatch
// matches a user whose name it is (with * for any run of characters), or who is in the group of
// exactly that name. Custodians are user names, without patterns.
type Identities struct {
	Custodians  []string
	Automation  []string
	EscapeHatch []string
	// MachineAPI are the user names, without patterns, that may say where a Machine runs.
	MachineAPI []string
	// CRD are the user names, without patterns, that may change the Machine CRD.
	CRD []string
}

// DefaultIdentities are the identities without flags, for a Holdfast that runs as the given user. Who uses the recovery
// kubeconfig of an OpenShift host is a person at the one time when an escape hatch is needed.
// The Machine API's controllers, of every provider, share one account. Those that migrate Machines to
// and from Cluster API write status.authoritativeAPI and mirror the rest: by an account of their own,
// and before they had one, by their operator's.
func DefaultIdentities(self string) Identities {
	return Identities{
		Custodians:  []string{self, "system:serviceaccount:openshift-etcd-operator:etcd-operator"},
		EscapeHatch: []string{"system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client"},
		CRD:         []string{"system:serviceaccount:openshift-cluster-version:default", "system:serviceaccount:openshift-cluster-version:cluster-version-operator"},
		MachineAPI: []string{
			"system:serviceaccount:openshift-machine-api:machine-api-controllers",
			"system:serviceaccount:openshift-cluster-api:machine-api-migration",
			"system:serviceaccount:openshift-cluster-api:cluster-capi-operator",
		},
	}
}

// Classify says what a user is. Custodians come first, then the escape hatch's users, then
// automation: a name that begins with "system:" but is not system:admin, or an added one.
func (ids Identities) Classify(u User) Class {
	switch {
	case slices.Contains(ids.Custodians, u.Name):
		return ClassCustodian
	case u.in(ids.EscapeHatch):
		return ClassPerson
	case strings.HasPrefix(u.Name, "system:") && u.Name != "system:admin", u.in(ids.Automation):
		return ClassAutomation
	default:
		return ClassPerson
	}
}

func (u User) in(entries []string) bool {
	return slices.ContainsFunc(entries, func(e string) bool {
		return glob(e, u.Name) || slices.Contains(u.Groups, e)
	})
}

// glob matches a name against a pattern in which * stands for any run of characters, also none.
func glob(pattern, name string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	for name = name[len(head):]; ; name = name[1:] {
		if glob(rest, name) {
			return true
		}
		if name == "" {
			return false
		}
	}
}
