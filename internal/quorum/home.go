package quorum

import "slices"

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
func (ids Identities) AdmitHome(r *HomeRequest, machines []Machine, known bool) Decision {
	var d Decision
	if r.Operation != Delete && !r.Prunes && (r.Changes == "" || slices.Contains(ids.CRD, r.User.Name)) {
		return d
	}
	var hooked []string
	for i := range machines {
		if machines[i].Hook == Ours || machines[i].Latch == Ours {
			hooked = append(hooked, machines[i].Name)
		}
	}
	slices.Sort(hooked)
	if known && len(hooked) == 0 {
		return d
	}
	d.add(Home, Denied, homeDenied(r, hooked, known)...)
	return d
}
