package admission

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// kubectl is a command for the request's Machine that a person can paste.
func (r *Request) kubectl(verb, rest string) string {
	return strings.TrimRight(fmt.Sprintf("kubectl -n %s %s machine %s %s", r.Namespace, verb, r.name(), rest), " ")
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

// lift is the line that says how to override a rule.
func (r *Request) lift(rule quorum.Rule) string {
	return "To go ahead all the same: " + r.override(rule) + ", and try again."
}

// override is the command that lifts a rule.
func (r *Request) override(rule quorum.Rule) string {
	return r.kubectl("annotate", fmt.Sprintf("--overwrite %s='%s: <reason>'", quorum.OverrideAnnotation, rule))
}

// watch is the command that shows how the replacement gets on.
func (r *Request) watch() string {
	return "kubectl -n " + r.Namespace + " get machines -w"
}

// hosted names the members that a Machine hosts.
func hosted(s *quorum.Snapshot, m *quorum.Machine) string {
	var names []string
	for _, k := range quorum.NewJoin(s).Members(s.MachineIndex(m.Name)) {
		names = append(names, s.Ring.Members[k].String())
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
