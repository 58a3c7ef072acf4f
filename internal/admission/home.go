package admission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// HomeRequest is a request for what the Machines live in: their namespace or their CRD.
type HomeRequest struct {
	What      string // for people: "namespace openshift-machine-api", "the Machine CRD"
	Operation Operation
	// Prunes: the new CRD serves nothing; or has no place for lifecycle hooks, so that the API server
	// would drop them from every Machine that it stores or shows; or does not take Holdfast's, so that no
	// hook could be put on; or has no status subresource, so that whoever may write a Machine could say
	// where it runs.
	Prunes bool
	// Changes is what of the CRD is changed beyond what cannot matter, "" for nothing.
	Changes string
	User    User
}

// AdmitHome is the rule home: while any Machine carries the hook, the Machine namespace and the
// Machine CRD are not deleted, the CRD keeps its lifecycle hooks, and only the cluster's version operator changes more of it than
// what cannot matter: there is no end to the ways to prune, cap, convert or hide a field. Deleting the CRD would remove
// every Machine without asking admission again. Machines are all of the namespace; known is false if
// they could not be read, which counts as hooked.
func (ids Identities) AdmitHome(r *HomeRequest, machines []quorum.Machine, known bool) Decision {
	var d Decision
	if r.Operation != OperationDelete && !r.Prunes && (r.Changes == "" || slices.Contains(ids.CRD, r.User.Name)) {
		return d
	}
	var hooked []string
	for i := range machines {
		if machines[i].Hook == quorum.EntryOurs || machines[i].Latch == quorum.EntryOurs {
			hooked = append(hooked, machines[i].Name)
		}
	}
	slices.Sort(hooked)
	if known && len(hooked) == 0 {
		return d
	}
	d.add(quorum.RuleHome, VerdictDenied, homeDenied(r, hooked, known)...)
	return d
}

func homeDenied(r *HomeRequest, hooked []string, known bool) []string {
	verb := "may not be deleted"
	if r.Operation != OperationDelete {
		verb = "must be served, take etcd's hook in spec.lifecycleHooks and keep its status subresource"
		if !r.Prunes {
			verb = "may not change (" + quorum.Clip(r.Changes, 120) + ") other than in descriptions, printer columns, short names, categories and new optional fields without a default, unless by --crd-custodians,"
		}
	}
	lines := []string{fmt.Sprintf("Refused (%s): %s %s while Machines carry etcd's hook.", quorum.RuleHome, r.What, verb)}
	if known {
		lines = append(lines, fmt.Sprintf("Those are %s.", quorum.Clip(strings.Join(hooked, ", "), 160)))
	} else {
		lines = append(lines, "Holdfast could not read the Machines, so it assumes some are hooked.")
	}
	return append(lines,
		"The Machines would be gone, or without their hooks, before anything could hold them, and etcd's members with them.",
		"To give up this control plane for good, take Holdfast off first: kubectl holdfast uninstall")
}
