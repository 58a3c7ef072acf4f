package admission

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// kubectl is a command for the request's Machine that a person can paste. It has the API group: where Cluster API is installed too, machine is
// its Machine.
func (r *Request) kubectl(verb, rest string) string {
	return strings.TrimRight(fmt.Sprintf("kubectl -n %s %s machine.machine.openshift.io %s %s", r.Namespace, verb, r.name(), rest), " ")
}

func (r *Request) name() string {
	switch {
	case r.Old != nil:
		return r.Old.Name
	case r.New.Name == "":
		return "(not named yet)" // generateName
	}
	return r.New.Name
}

// holder is the name of the hook that holds the Machine, whose loss would let it go.
func (r *Request) holder() string {
	if r.Old.Hook == quorum.EntryOurs {
		return quorum.HookName
	}
	return quorum.LatchName
}

// lift is the line that says how to override a rule, which only a person does, and why an override that is set does not.
func (d *deciding) lift(rule quorum.Rule) string {
	if d.class != ClassPerson {
		return "To go ahead all the same, as a person: " + d.override(rule) + ", and try again."
	}
	if _, why := d.Old.Lifted(d.At); why != "" {
		return "The override that is set does not count: " + why + ". To go ahead all the same: " + d.override(rule) + ", and try again."
	}
	if d.Old.Misspelled != "" && d.Old.Override == "" {
		return fmt.Sprintf("Annotation %s means nothing. To go ahead: %s, and try again.", quorum.Clip(d.Old.Misspelled, 32), d.override(rule))
	}
	return "To go ahead all the same: " + d.override(rule) + ", and try again."
}

// override is the command that lifts a rule, for a deletion beside those that are lifted already.
func (r *Request) override(rule quorum.Rule) string {
	lifted, _ := r.Old.Lifted(r.At)
	names := ""
	for _, other := range lifted {
		if other != rule && r.Operation == OperationDelete {
			names += string(other) + ", "
		}
	}
	names += string(rule)
	return r.kubectl("annotate", fmt.Sprintf("--overwrite %s='%s: %s'", quorum.OverrideAnnotation, names, r.Old.NewReason(r.At)))
}

// watch is the command that shows how the replacement gets on.
func (r *Request) watch() string {
	return "kubectl -n " + r.Namespace + " get machines.machine.openshift.io -w"
}

// hosted names the members that the request's Machine hosts.
func (d *deciding) hosted() string {
	var names []string
	for _, member := range d.join.Members(d.machine) {
		names = append(names, member.String())
	}
	return strings.Join(names, " and ")
}

// reasonLine is a cause that came as somebody else's text, as a line of its own.
func reasonLine(why string) string {
	if why == "" {
		return "Reason: none was given."
	}
	return "Reason: " + strings.TrimRight(quorum.Clip(why, 180), ".") + "."
}
