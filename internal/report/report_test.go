package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

var update = flag.Bool("update", false, "write the golden files anew")

// demo are the records of make demo.
func demo(t *testing.T) []audit.Entry {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "docs", "examples", "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []audit.Entry
	if _, err := audit.Read(f, func(e audit.Entry) { out = append(out, e) }, func(line int, err error) { t.Error(line, err) }); err != nil {
		t.Fatal(err)
	}
	return audit.Merge(out)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not so any more (-want +got; -update writes it anew):\n%s", path, diff)
	}
}

// TestDemo: four Machines are replaced, one by hand and three by the set.
func TestDemo(t *testing.T) {
	r := New(demo(t), Wanted{})
	var out strings.Builder
	since := func(at time.Time) string {
		if at.IsZero() {
			return "-"
		}
		return fmt.Sprintf("%.1f", at.Sub(r.From).Seconds())
	}
	for i := range r.Lanes {
		l := &r.Lanes[i]
		fmt.Fprintf(&out, "%s\n", l.Machine)
		for _, s := range l.Member {
			fmt.Fprintf(&out, "  %s to %s %s\n", since(s.From), since(s.To), s.State)
		}
		for _, s := range l.Deleting {
			fmt.Fprintf(&out, "  %s to %s deleting\n", since(s.From), since(s.To))
		}
	}
	for i := range r.Replacements {
		p := &r.Replacements[i]
		fmt.Fprintf(&out, "%s deleted %s by %s, replaced by %s: learner %s, votes %s, left %s, gone %s\n",
			p.Machine, since(p.Deleted), p.User, p.By, since(p.Learner), since(p.Votes), since(p.Left), since(p.Gone))
		var sum time.Duration
		for _, phase := range p.Phases() {
			sum += phase.Time
		}
		if sum != p.Gone.Sub(p.Deleted) {
			t.Errorf("the phases of %s take %s of %s", p.Machine, sum, p.Gone.Sub(p.Deleted))
		}
	}
	golden(t, "demo.txt", out.String())
}

func TestWanted(t *testing.T) {
	all := New(demo(t), Wanted{})
	half := all.From.Add(all.To.Sub(all.From) / 2)
	for name, c := range map[string]struct {
		wanted Wanted
		check  func(r *Report) string
	}{
		"one Machine": {Wanted{Machines: []string{"master-1"}}, func(r *Report) string {
			if len(r.Lanes) != 1 || len(r.Replacements) != 1 || slices.ContainsFunc(r.Items, func(i Item) bool { return i.Machine != "" && i.Machine != "master-1" }) {
				return fmt.Sprintf("%d lanes, %d replacements", len(r.Lanes), len(r.Replacements))
			}
			return ""
		}},
		"the second half": {Wanted{From: half}, func(r *Report) string {
			if r.Items[0].At.Before(half) || r.Lanes[0].Member[0].From.Before(half) || slices.ContainsFunc(r.Replacements, func(p Replacement) bool { return p.Machine == "master-1" }) {
				return fmt.Sprintf("%+v, %+v", r.Items[0], r.Replacements)
			}
			return ""
		}},
		"the first half": {Wanted{To: half}, func(r *Report) string {
			if r.Items[len(r.Items)-1].At.After(half) || slices.ContainsFunc(r.Lanes, func(l Lane) bool { return l.Member[len(l.Member)-1].To.After(half) }) {
				return "later items or lanes"
			}
			return ""
		}},
		"nothing": {Wanted{From: all.To.Add(time.Hour), To: all.To.Add(2 * time.Hour)}, func(r *Report) string {
			if len(r.Items) != 0 || len(r.Replacements) != 0 {
				return fmt.Sprintf("%d items, %+v", len(r.Items), r.Replacements)
			}
			return ""
		}},
	} {
		if wrong := c.check(New(demo(t), c.wanted)); wrong != "" {
			t.Errorf("%s: %s", name, wrong)
		}
	}
}

// entry is a record with the members that were seen.
func entry(at time.Time, verb, machine, user string, annotations map[string]string, said string) audit.Entry {
	var e audit.Entry
	e.Verb, e.User.Username, e.Annotations = verb, user, annotations
	e.RequestReceivedTimestamp = metav1.NewMicroTime(at)
	e.ResponseStatus = &metav1.Status{Message: said}
	e.ObjectRef = &auditv1.ObjectReference{Name: machine}
	return e
}

// TestGoesOn: a Machine is deleted, its member does not answer, and nobody has come for it.
func TestGoesOn(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	look := func(after time.Duration, members string) audit.Entry {
		at := start.Add(after)
		return entry(at, "observe", "", "holdfast", map[string]string{
			audit.StepAnnotation:     "Changed",
			audit.EvidenceAnnotation: fmt.Sprintf(`{"at":%q,%s}`, at.Format(time.RFC3339Nano), members),
		}, "")
	}
	entries := []audit.Entry{
		look(0, `"members":[{"id":"a","machine":"master-0","healthy":true},{"id":"b","machine":"master-1","healthy":true}]`),
		look(time.Second, `"unknown":"no answer"`), // says nothing
		look(2*time.Second, `"members":[{"id":"a","machine":"master-0","healthy":true},{"id":"b","machine":"master-1","healthy":false}],"deleting":["master-1"]`),
		look(3*time.Second, `"members":[{"id":"a","machine":"master-0","healthy":true},{"id":"b","machine":"master-1","healthy":false},{"id":"c","name":"lost","learner":true,"healthy":false}],"deleting":["master-1"]`),
	}
	r := New(entries, Wanted{To: start.Add(10 * time.Second)})
	want := []Lane{
		{Machine: "master-0", Member: []Span{{start, start.Add(10 * time.Second), StateVoter}}},
		{
			Machine:  "master-1",
			Member:   []Span{{start, start.Add(2 * time.Second), StateVoter}, {start.Add(2 * time.Second), start.Add(10 * time.Second), StateUnhealthy}},
			Deleting: []Span{{From: start.Add(2 * time.Second), To: start.Add(10 * time.Second)}},
		},
		{Machine: "lost", Member: []Span{{start.Add(3 * time.Second), start.Add(10 * time.Second), StateLearner}}},
	}
	if diff := cmp.Diff(want, r.Lanes); diff != "" {
		t.Error(diff)
	}
	if p := r.Replacements[0]; len(r.Replacements) != 1 || p.By != "lost" || !p.Gone.IsZero() || !p.Left.IsZero() || !p.Votes.IsZero() {
		t.Errorf("%+v", r.Replacements)
	}
}

// looks are records of looks at etcd, one a second: "3: a=m0 b=m1 c=m2? / m1" wants 3 voters, member c on Machine m2 is a learner, and m1 is being
// deleted.
func looks(t *testing.T, start time.Time, all ...string) (out []audit.Entry) {
	t.Helper()
	for k, look := range all {
		e := audit.Evidence{At: start.Add(time.Duration(k) * time.Second)}
		desired, rest, _ := strings.Cut(look, ": ")
		members, deleting, _ := strings.Cut(rest, " / ")
		e.Desired, _ = strconv.Atoi(desired)
		e.Deleting = strings.Fields(deleting)
		for m := range strings.FieldsSeq(members) {
			id, on, _ := strings.Cut(m, "=")
			machine, learner := strings.CutSuffix(on, "?")
			e.Members = append(e.Members, audit.Member{ID: id, Machine: machine, Learner: learner, Healthy: true})
		}
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry(e.At, "observe", "", "holdfast", map[string]string{audit.StepAnnotation: "Seen", audit.EvidenceAnnotation: string(raw)}, ""))
	}
	return out
}

// TestReplacedBy: a Machine is named only if nothing else can have taken the place.
func TestReplacedBy(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		looks []string
		want  []string // Machine, the one that replaced it, when that one's member voted, when the old one left; in seconds
	}{
		"one after the other": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 / m0", "3: a=m0 b=m1 c=m2 d=n0? / m0", "3: a=m0 b=m1 c=m2 d=n0 / m0", "3: b=m1 c=m2 d=n0 / m1",
			"3: b=m1 c=m2 d=n0 e=n1 / m1", "3: c=m2 d=n0 e=n1",
		}, []string{"m0 n0 3 4", "m1 n1 5 6"}},
		"a name that is used again": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 / m2", "3: a=m0 b=m1 / m2", "3: a=m0 b=m1 d=m2?", "3: a=m0 b=m1 d=m2", "3: a=m0 b=m1 d=m2 / m2",
			"3: a=m0 b=m1 d=m2 e=m3 / m2", "3: a=m0 b=m1 e=m3",
		}, []string{"m2 m2 4 2", "m2 m3 6 7"}},
		"another learner was there before": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 / m1", "3: a=m0 b=m1 c=m2 x=byhand? / m1", "3: a=m0 b=m1 c=m2 x=byhand? d=n1? / m1", "3: a=m0 b=m1 c=m2 x=byhand? d=n1 / m1",
			"3: a=m0 c=m2 d=n1 x=byhand?",
		}, []string{"m1 n1 4 5"}},
		"one of five went for good": {[]string{
			"5: a=m0 b=m1 c=m2 d=m3 e=m4", "3: a=m0 b=m1 c=m2 d=m3 e=m4 / m4 m3", "3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 / m1", "3: a=m0 b=m1 c=m2 f=n1 / m1", "3: a=m0 c=m2 f=n1",
		}, []string{"m3  - 2", "m4  - 2", "m1 n1 4 5"}},
		"two at once": {[]string{
			"5: a=m0 b=m1 c=m2 d=m3 e=m4", "5: a=m0 b=m1 c=m2 d=m3 e=m4 / m1 m2", "5: a=m0 b=m1 c=m2 d=m3 e=m4 f=n1 / m1 m2", "5: a=m0 d=m3 e=m4 f=n1 / m2",
			"5: a=m0 d=m3 e=m4 f=n1 g=n2", "5: a=m0 d=m3 e=m4 f=n1 g=n2 / m0", "5: a=m0 d=m3 e=m4 f=n1 g=n2 h=n0 / m0", "5: d=m3 e=m4 f=n1 g=n2 h=n0",
		}, []string{"m1  - 3", "m2  - 3", "m0 n0 6 7"}},
		"the new one is there first": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 d=n0?", "3: a=m0 b=m1 c=m2 d=n0", "3: a=m0 b=m1 c=m2 d=n0 / m0", "3: b=m1 c=m2 d=n0",
		}, []string{"m0 n0 2 4"}},
		"two new ones are there first": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 d=n0 e=n1", "3: a=m0 b=m1 c=m2 d=n0 e=n1 / m0", "3: b=m1 c=m2 d=n0 e=n1 / m1", "3: c=m2 d=n0 e=n1",
		}, []string{"m0  - 3", "m1  - 4"}},
		"more are wanted": {[]string{
			"3: a=m0 b=m1 c=m2", "5: a=m0 b=m1 c=m2 d=m3", "5: a=m0 b=m1 c=m2 d=m3 e=m4", "5: a=m0 b=m1 c=m2 d=m3 e=m4 / m1", "5: a=m0 c=m2 d=m3 e=m4",
		}, []string{"m1  - 4"}},
		"how many are wanted is not known": {[]string{
			"0: a=m0 b=m1 c=m2", "0: a=m0 b=m1 c=m2 d=m3", "0: a=m0 b=m1 c=m2 d=m3 / m1", "0: a=m0 c=m2 d=m3",
		}, []string{"m1  - 3"}},
		"the dead member left first": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1", "3: a=m0 b=m1 / m2", "3: a=m0 b=m1", "3: a=m0 b=m1 d=n2",
		}, []string{"m2 n2 4 1"}},
		"a member was made anew on its own Machine": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1", "3: a=m0 b=m1 d=m2", "3: a=m0 b=m1 d=m2 / m2", "3: a=m0 b=m1 d=m2 e=n2 / m2", "3: a=m0 b=m1 e=n2",
		}, []string{"m2 n2 4 5"}},
		"the new one goes again": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 d=n0", "3: a=m0 b=m1 c=m2 d=n0 / n0", "3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 / m1",
		}, []string{"n0  - 3", "m1  - -"}},
		"it is on its way": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 / m1", "3: a=m0 b=m1 c=m2 d=n1? / m1",
		}, []string{"m1 n1 - -"}},
		"two are on their way": {[]string{
			"3: a=m0 b=m1 c=m2", "3: a=m0 b=m1 c=m2 / m1", "3: a=m0 b=m1 c=m2 d=n1? e=n2? / m1",
		}, []string{"m1  - -"}},
	} {
		t.Run(name, func(t *testing.T) {
			since := func(at time.Time) string {
				if at.IsZero() {
					return "-"
				}
				return strconv.Itoa(int(at.Sub(start).Seconds()))
			}
			var got []string
			for _, p := range New(looks(t, start, c.looks...), Wanted{}).Replacements {
				got = append(got, strings.Join([]string{p.Machine, p.By, since(p.Votes), since(p.Left)}, " "))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotEnforced: the deletion that a rule denied, and that passed all the same, is the one that took the Machine.
func TestNotEnforced(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := New([]audit.Entry{entry(at, "delete", "master-1", "alice", map[string]string{
		audit.RuleAnnotation: "one-too-many", audit.VerdictAnnotation: "denied", audit.EnforcementAnnotation: "warn",
	}, "Refused (one-too-many): it is one too many.")}, Wanted{})
	if i := r.Items[0]; i.Class() != "allowed" || i.Verdict != "not enforced: denied" || !strings.Contains(i.Said[0], "--enforcement=warn") {
		t.Errorf("%+v", i)
	}
}

// TestKinds: a record has the resource, of which the kind is shown.
func TestKinds(t *testing.T) {
	for resource, want := range map[string]string{
		"machines": "x", "": "x", "controlplanemachinesets": "controlplanemachineset/x", "validatingadmissionpolicies": "validatingadmissionpolicy/x",
	} {
		e := entry(time.Now(), "update", "x", "alice", map[string]string{audit.RuleAnnotation: "home", audit.VerdictAnnotation: "allowed"}, "")
		e.ObjectRef.Resource = resource
		if got := New([]audit.Entry{e}, Wanted{}).Items[0].Machine; got != want {
			t.Errorf("%s is shown as %s, want %s", resource, got, want)
		}
	}
}

// TestEvents: what the records tell of already is not told twice, and what an Event of whole seconds tells of comes after its cause.
func TestEvents(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, int(300*time.Millisecond), time.UTC)
	entries := []audit.Entry{
		entry(at, "promote", "master-3", audit.StepUser, map[string]string{audit.StepAnnotation: "LearnerPromoted"}, "Holdfast: promote learner master-3: it has caught up"),
		entry(at, "delete", "master-0", "alice", map[string]string{audit.RuleAnnotation: "one-too-many", audit.VerdictAnnotation: "denied"}, "Refused (one-too-many): not now.\nWait."),
		entry(at, "delete", "master-1", "bob", map[string]string{audit.RuleAnnotation: "one-too-many,held", audit.VerdictAnnotation: "overridden,allowed"}, "Lifted by bob.\nIt is held."),
	}
	second := metav1.NewTime(at.Truncate(time.Second))
	told := func(machine, by, reason, kind, note string) corev1.Event {
		return corev1.Event{
			InvolvedObject: corev1.ObjectReference{Name: machine}, ReportingController: by, Reason: reason, Type: kind, Message: note,
			FirstTimestamp: second, LastTimestamp: second,
		}
	}
	series := told("master-0", "holdfast", "HookRestored", "Warning", "UPDATE by argocd: Holdfast (keep-hook) put it back.")
	series.FirstTimestamp, series.LastTimestamp, series.EventTime = metav1.Time{}, metav1.Time{}, metav1.NewMicroTime(at.Add(-time.Minute))
	series.Series = &corev1.EventSeries{Count: 7, LastObservedTime: metav1.NewMicroTime(at.Add(time.Minute))}
	r := New(entries, Wanted{Events: []corev1.Event{
		told("master-3", "holdfast", "LearnerPromoted", "Normal", "Holdfast: promote learner master-3: it has caught up"),
		told("master-0", "holdfast", "DeletionBlocked", "Warning", "DELETE by alice: Refused (one-too-many): not now. Wait."),
		told("master-0", "machine-drain-controller", "DrainBlocked", "Normal", "Drain blocked by pre-drain hook"),
		told("master-1", "holdfast", "OverrideUsed", "Warning", "DELETE by bob: Lifted by bob."), // a record has both, an Event each
		told("master-1", "holdfast", "DeletionHeld", "Normal", "DELETE by bob: It is held."),
		told("master-1", "machine-drain-controller", "Held", "Normal", "held"), // another's is shown, whatever it says
		series,
	}})
	var got []string
	for i := range r.Items {
		it := &r.Items[i]
		got = append(got, fmt.Sprintf("%s %s %s %s x%d", it.Class(), it.Machine, it.What, it.User, it.Count))
	}
	want := []string{
		"step master-3 LearnerPromoted holdfast x0", "denied master-0 DELETE alice x0", "overridden master-1 DELETE bob x0",
		"event master-0 DrainBlocked machine-drain-controller x0", "event master-1 Held machine-drain-controller x0", "warning master-0 HookRestored holdfast x7",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestHostile: what users wrote is text on the page, whatever they wrote.
func TestHostile(t *testing.T) {
	const evil = `</script><script>alert(1)</script><img src=x onerror=alert(1)>"'` + "\x1b[2J\a\u202e\u2066"
	var out bytes.Buffer
	r := New([]audit.Entry{entry(time.Now(), evil, evil, evil, map[string]string{
		audit.RuleAnnotation: evil, audit.VerdictAnnotation: evil, audit.ReleaseReasonAnnotation: evil,
		audit.EvidenceAnnotation: `{"members":[{"id":"a","machine":"</script><script>alert(1)</script>","healthy":true}]}`,
	}, evil)}, Wanted{Missing: []string{evil}})
	if err := r.HTML(&out, evil); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	if strings.Contains(page, "<script>alert") || strings.Contains(page, "<img") || strings.Count(page, "<script>") != 1 {
		t.Error("it is not escaped:\n" + page)
	}
	if at := strings.IndexFunc(page, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
		t.Errorf("a character that does not print: %q", page[at:min(at+20, len(page))])
	}
	for _, load := range []string{"http://", "https://", "src=", "@import", "url("} {
		if strings.Contains(strings.ReplaceAll(page, "&lt;img src=x", ""), load) {
			t.Errorf("the page loads something: it holds %s", load)
		}
	}
}
