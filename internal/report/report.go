// Package report makes one timeline of audit records and Events: who asked for what, what Holdfast said and did, and what
// became of etcd's members meanwhile. lanes.go works out how each Machine's member fared, page.go makes the HTML page.
package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// Source is where an Item is from.
type Source string

// The sources.
const (
	SourceDecision Source = "decision" // of admission: somebody's request
	SourceStep     Source = "step"     // Holdfast's own, or what it saw
	SourceEvent    Source = "event"    // of another controller, or of Holdfast where its records are lost
)

// Item is one thing that happened. All texts in it may be anybody's.
type Item struct {
	At      time.Time `json:"time"`
	Since   time.Time `json:"since,omitzero"`  // of the first, where it stands for several; At is the last's
	Count   int       `json:"count,omitempty"` // of those, 0 for one
	Source  Source    `json:"source"`
	Machine string    `json:"machine,omitempty"` // or another object, KIND/NAME; "" for the control plane as a whole
	User    string    `json:"user"`              // who asked, or the component that did it
	What    string    `json:"what"`              // the request's verb, or the reason of step or Event
	Rule    string    `json:"rule,omitempty"`    // rules, by comma
	Verdict string    `json:"verdict,omitempty"` // theirs, by comma; one word where they were not enforced
	Warning bool      `json:"warning,omitempty"`
	Said    []string  `json:"said,omitempty"` // lines
}

// Class is how an Item is shown: the gravest verdict of a decision, or step, warning or event.
func (i *Item) Class() string {
	if i.Source == SourceDecision {
		for _, verdict := range [...]string{"denied", "overridden", "repaired"} {
			if slices.Contains(strings.Split(i.Verdict, ","), verdict) {
				return verdict
			}
		}
		return "allowed"
	}
	if i.Warning {
		return "warning"
	}
	return string(i.Source)
}

// order is when it comes in the timeline. Most Events have whole seconds, and follow from a record of that second.
func (i *Item) order() time.Time {
	if i.Source == SourceEvent && i.At.Nanosecond() == 0 {
		return i.At.Add(time.Second - 1)
	}
	return i.At
}

// Report is the timeline of a control plane.
type Report struct {
	From         time.Time     `json:"from"`
	To           time.Time     `json:"to"`
	Missing      []string      `json:"missing,omitempty"` // what could not be read, for people
	Replacements []Replacement `json:"replacements"`
	Lanes        []Lane        `json:"machines"`
	Items        []Item        `json:"items"`
}

// Wanted says which part of the records a Report is about. The zero value is about all of it.
type Wanted struct {
	From, To time.Time      // To is the time until which what was last seen goes on; zero for the last record's
	Machines []string       // the Machines; none for all
	Missing  []string       // what could not be read
	Events   []corev1.Event // of the Machines, and what keeps them
}

// New makes a report. The entries are as audit.Merge has them.
func New(entries []audit.Entry, w Wanted) *Report {
	r := &Report{From: w.From, To: w.To, Missing: w.Missing}
	for i := range entries {
		r.Items = append(r.Items, fromEntry(&entries[i]))
	}
	r.Items = append(r.Items, others(r.Items, w.Events)...)
	slices.SortStableFunc(r.Items, func(a, b Item) int { return a.order().Compare(b.order()) })
	if n := len(r.Items); n > 0 {
		r.From, r.To = cmp.Or(r.From, r.Items[0].At), cmp.Or(r.To, r.Items[n-1].At)
	}
	all := sights(entries)
	r.Lanes = lanes(all, r.To)
	r.Replacements = replacements(all, r.Lanes, r.Items)
	other := func(machine string) bool { return len(w.Machines) > 0 && !slices.Contains(w.Machines, machine) }
	r.Items = slices.DeleteFunc(r.Items, func(i Item) bool {
		return i.At.Before(w.From) || !w.To.IsZero() && i.At.After(w.To) || i.Machine != "" && other(i.Machine)
	})
	r.Lanes = slices.DeleteFunc(r.Lanes, func(l Lane) bool { return other(l.Machine) })
	r.Replacements = slices.DeleteFunc(r.Replacements, func(p Replacement) bool { return other(p.Machine) && other(p.By) })
	r.clip()
	return r
}

// machines is the resource of Machines. Another object has its kind before its name, as kubectl has it.
const machines = "machines"

func fromEntry(e *audit.Entry) Item {
	i := Item{At: e.Last(), Source: SourceDecision, Machine: e.Name(), User: e.User.Username, What: strings.ToUpper(e.Verb), Said: e.Said()}
	if o := e.ObjectRef; o != nil && o.Name != "" && o.Resource != "" && o.Resource != machines {
		kind := strings.TrimSuffix(o.Resource, "s")
		if stem, ok := strings.CutSuffix(kind, "ie"); ok { // policies
			kind = stem + "y"
		}
		i.Machine = kind + "/" + o.Name
	}
	if n := e.Count(); n > 1 {
		i.Count, i.Since = n, e.First()
	}
	if given := e.Annotations[audit.ReleaseReasonAnnotation]; given != "" {
		i.Said = append([]string{"The reason given: " + given}, i.Said...)
	}
	if e.Abandoned() {
		i.Said = append([]string{"The API server gave up on this answer; the request's outcome is unknown."}, i.Said...)
	}
	if step := e.Step(); step != "" {
		i.Source, i.What, i.Warning = SourceStep, step, e.Annotations[audit.WarningAnnotation] == "true"
		return i
	}
	i.Rule, i.Verdict = strings.Join(e.Rules(), ","), strings.Join(e.Verdicts(), ",")
	if enforcement := e.Annotations[audit.EnforcementAnnotation]; enforcement != "" {
		i.Verdict = "not enforced: " + strings.Join(e.Verdicts(), "/")
		i.Said = append([]string{"Not enforced (--enforcement=" + enforcement + "): the request passed as it was."}, i.Said...)
	}
	return i
}

// others are the Events that no item has already. Another controller's never is: only Holdfast's own have records.
func others(items []Item, events []corev1.Event) (out []Item) {
	oneLine := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	said := map[string][]string{} // by Machine
	for i := range items {
		said[items[i].Machine] = append(said[items[i].Machine], oneLine(strings.Join(items[i].Said, " ")))
	}
	for i := range events {
		it := fromEvent(&events[i])
		// An admission's Event is about one finding, where the record has all, and says first who asked for what. It may have been cut.
		_, finding, _ := strings.Cut(events[i].Message, ": ")
		finding = oneLine(finding)
		finding = finding[:min(len(finding), 200)]
		if it.User == audit.StepUser && slices.ContainsFunc(said[it.Machine], func(text string) bool { return strings.Contains(text, finding) }) {
			continue
		}
		out = append(out, it)
	}
	return out
}

func fromEvent(e *corev1.Event) Item {
	i := Item{
		At: e.LastTimestamp.Time, Source: SourceEvent, Machine: e.InvolvedObject.Name, What: e.Reason,
		User: cmp.Or(e.ReportingController, e.Source.Component), Warning: e.Type == corev1.EventTypeWarning,
		Said: strings.Split(e.Message, "\n"),
	}
	if kind := e.InvolvedObject.Kind; kind != "" && kind != "Machine" {
		i.Machine = strings.ToLower(kind) + "/" + i.Machine
	}
	n := e.Count
	if e.Series != nil { // of the newer API
		i.At, n = e.Series.LastObservedTime.Time, e.Series.Count
	}
	i.At = cmp.Or(i.At, e.EventTime.Time)
	if n > 1 {
		i.Count, i.Since = int(n), cmp.Or(e.FirstTimestamp.Time, e.EventTime.Time)
	}
	return i
}
