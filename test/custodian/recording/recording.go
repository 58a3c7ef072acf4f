// Package recording compares what an operator of etcd wrote with what was recorded of cluster-etcd-operator in the same
// situation. It is pure: whoever calls it has seen the writes, and tells where.
//
// Compared are the writes to hooks and to etcd's membership that did something, or that Holdfast answered:
//
//   - A run of the same write to the same Machine, with the same answer, is one. A write that another writer of the Machine
//     was faster than, or that etcd refused or failed to take, is none: nothing has changed, and the operator sends it again.
//   - A removal whose answer was lost, and that etcd made, is done.
//   - The writes to a Machine and its member come in the same order.
//   - Changes of the membership come in the same order, and so do the removals and the hooks that are put on.
//   - An addition waits for its own Machine's hook alone, and a release for its own member: the operator looks at hooks once a
//     minute or when a Machine changes, whatever it does to other members meanwhile.
//
// Of times two things are compared: by Unprompted, that no release comes of a removal alone, and by Hasty, that a member which does
// not answer is asked twice for long before it is removed.
package recording

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Write is one write and what came of it.
type Write struct {
	At    time.Duration // since the cause
	Actor string
	Kind  Kind
	Call  string
	On    string // the Machine, or the Machine of the member
	// Answer is done; put-back: there was no error, and the hook is as it was; refused; conflict: another writer was faster;
	// failed: etcd did not take it; lost: an error, and it was done; absent: there is no such object.
	Answer string
}

// Kind is what is written to.
type Kind string

// The kinds. Changed is a change of a Machine by anybody but the operator, which has it look at Machines.
const (
	Machine Kind = "machine"
	Member  Kind = "member"
	Other   Kind = "other"
	Changed Kind = "changed"
)

// The calls, besides verbs.
const (
	PutHook     = "put-hook"
	ReleaseHook = "release-hook"
	Add         = "MemberAddAsLearner"
	Promote     = "MemberPromote"
	Remove      = "MemberRemove"
)

// String is the write as a line of a recording.
func (w Write) String() string {
	return fmt.Sprintf("%5.1f %s %s %s %s %s", w.At.Seconds(), w.Actor, w.Kind, w.Call, w.On, w.Answer)
}

// Parse reads a recording: a line for each write, seconds first; those that begin with # say what it is of.
func Parse(text string) ([]Write, error) {
	var out []Write
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 6 {
			return nil, fmt.Errorf("%q: want seconds, actor, kind, call, object and answer", line)
		}
		at, err := strconv.ParseFloat(words[0], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		w := Write{time.Duration(at * float64(time.Second)), words[1], Kind(words[2]), words[3], words[4], words[5]}
		if !slices.Contains([]Kind{Machine, Member, Other, Changed}, w.Kind) {
			return nil, fmt.Errorf("%q: no such kind", line)
		}
		out = append(out, w)
	}
	return out, nil
}

// step is a write as it is compared.
type step struct{ call, on, answer string }

func (s step) String() string {
	if s.answer == "done" {
		return s.call + " " + s.on
	}
	return s.call + " " + s.on + " " + s.answer
}

func (s step) member() bool { return slices.Contains([]string{Add, Promote, Remove}, s.call) }

// ordered says whether two steps have to come in the recorded order.
func ordered(a, b step) bool {
	return a.on == b.on || a.member() && b.member() || a.call == Remove && b.call == PutHook || a.call == PutHook && b.call == Remove
}

// steps are the writes that are compared, in order.
func steps(writes []Write) []step {
	var out []step
	last := map[string]step{} // by Machine
	for _, w := range writes {
		s := step{w.Call, w.On, w.Answer}
		switch {
		case w.Kind == Machine && w.Answer != "conflict" && w.Answer != "failed":
		case w.Kind == Member && w.Answer != "refused":
			s.answer = "done"
		default:
			continue
		}
		if last[w.On] != s {
			last[w.On] = s
			out = append(out, s)
		}
	}
	return out
}

// Steps are the writes that are compared, a line for each.
func Steps(writes []Write) string {
	out := &strings.Builder{}
	for _, s := range steps(writes) {
		fmt.Fprintln(out, s)
	}
	return out.String()
}

// Differences says in what the observed writes differ from the recorded ones; nothing if they are the same.
func Differences(recorded, observed []Write) []string {
	want, got := steps(recorded), steps(observed)
	var out []string
	for _, on := range objects(want, got) {
		if w, g := of(want, on), of(got, on); w != g {
			out = append(out, fmt.Sprintf("%s: recorded %s; observed %s", on, w, g))
		}
	}
	if out != nil {
		return out // their order among others says no more
	}
	places := numbered(got)
	numbers := numbered(want)
	place := func(n string) int { return slices.Index(places, n) }
	for i, a := range want {
		for k, b := range want[i+1:] {
			if ordered(a, b) && place(numbers[i]) > place(numbers[i+1+k]) {
				out = append(out, fmt.Sprintf("recorded %s before %s; observed the other way round", a, b))
			}
		}
	}
	return out
}

// objects are the Machines of both, in the alphabet's order.
func objects(a, b []step) []string {
	var out []string
	for _, s := range slices.Concat(a, b) {
		out = append(out, s.on)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// of are the steps of one Machine.
func of(all []step, on string) string {
	var out []string
	for _, s := range all {
		if s.on == on {
			out = append(out, strings.Join(strings.Fields(strings.Replace(s.String(), on, "", 1)), " "))
		}
	}
	if out == nil {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

// numbered tells equal steps apart.
func numbered(all []step) []string {
	count := map[step]int{}
	var out []string
	for _, s := range all {
		count[s]++
		out = append(out, fmt.Sprintf("%s %d", s, count[s]))
	}
	return out
}

// Unprompted says which release came of the removal of a member alone: no Machine changed between the two, and it came sooner
// than the operator's next look, which is one resync after the last change at the earliest.
func Unprompted(writes []Write, resync time.Duration) []string {
	var out []string
	removed := map[string]bool{} // since the last change of a Machine, by Machine
	var changed time.Duration    // when one did
	for _, w := range writes {
		switch {
		case w.Kind == Member && w.Call == Remove && w.Answer != "refused":
			removed[w.On] = true
		case w.Kind == Machine && w.Call == ReleaseHook && removed[w.On] && w.At < changed+resync:
			out = append(out, fmt.Sprintf("%s at %.1f s: no Machine had changed since its member left, and the last look was not %s ago", step{w.Call, w.On, w.Answer}, w.At.Seconds(), resync))
		}
		if w.Kind == Changed || w.Kind == Machine && w.Answer == "done" {
			clear(removed)
			changed = w.At
		}
	}
	return out
}

// Hasty says which member was removed sooner after the deletion of its Machine than two waits for an answer take, of members that do not
// answer. The recorded one waited for half a minute, twice.
func Hasty(writes []Write, wait time.Duration) []string {
	var out []string
	deleted := map[string]time.Duration{}
	for _, w := range writes {
		switch at, is := deleted[w.On]; {
		case w.Kind == Changed && w.Call == "delete":
			deleted[w.On] = w.At
		case w.Kind == Member && w.Call == Remove && (!is || w.At < at+2*wait):
			out = append(out, fmt.Sprintf("%s at %.1f s, sooner than 2 x %s after the deletion of its Machine", step{w.Call, w.On, "done"}, w.At.Seconds(), wait))
		}
	}
	return out
}
