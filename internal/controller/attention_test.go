package controller

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// toldElsewhere are the membership reasons that no person has to act on by HoldfastNeedsAttention, with the alert that tells of each, "" for
// none.
var toldElsewhere = map[membership.Reason]string{
	membership.ReasonEtcdUnknown:             "HoldfastNotReadingEtcd",
	membership.ReasonEtcdNoLeader:            "HoldfastQuorumLost",
	membership.ReasonEtcdMembersUnhealthy:    "HoldfastVoterUnhealthy",
	membership.ReasonEtcdNoSpace:             "HoldfastEtcdAlarm",
	membership.ReasonEtcdCorrupt:             "HoldfastEtcdAlarm",
	membership.ReasonInvariantViolated:       "HoldfastPlanRefused",
	membership.ReasonBootstrapMemberWaits:    "HoldfastBootstrapMemberStays",
	membership.ReasonReplacementWaits:        "HoldfastReplacementStuck",
	membership.ReasonLearnerBehind:           "HoldfastLearnerWaits",
	membership.ReasonMachineAPINotFunctional: "", // a control plane without it is in order as it is
	membership.ReasonMachineMirrored:         "", // left alone, as told to
	membership.ReasonEtcdVotersGrown:         "", // in order
}

// setToldElsewhere are the set's reasons that HoldfastSetNeedsAttention leaves out, likewise.
var setToldElsewhere = map[machineset.Reason]string{
	machineset.ReasonGateShut:        "HoldfastSetGateShut",
	machineset.ReasonOperatorPresent: "", // the platform's operator reconciles the set
	machineset.ReasonSetInactive:     "", // as its spec says
	machineset.ReasonIndexTwice:      "", // the set waits, and nothing is wrong
	machineset.ReasonNeedsDelete:     "", // a person deletes when it suits
}

// TestAttention: every reason in the code is a label of the alert that asks for a person, or another alert tells of it, or there is a word
// here why none does. The rule, the table in docs/alerts.md and the code have the same reasons, and each is served.
func TestAttention(t *testing.T) {
	root, err := assets.Root()
	must(t, err)
	text := func(file string) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(root, file))
		must(t, err)
		return string(content)
	}
	rules, docs := text("deploy/monitoring/prometheusrule.yaml"), text("docs/alerts.md")
	check := func(alert, metric, code string, elsewhere map[string]string) (reasons []string) {
		t.Helper()
		all := reasonsIn(t, filepath.Join(root, code))
		for reason, other := range elsewhere {
			if !slices.Contains(all, reason) {
				t.Errorf("reason %s is told elsewhere, and %s does not have it", reason, code)
			}
			if other != "" && !strings.Contains(rules, "- alert: "+other+"\n") {
				t.Errorf("reason %s is told by %s, which is no alert", reason, other)
			}
		}
		reasons = slices.DeleteFunc(all, func(r string) bool { _, ok := elsewhere[r]; return ok })
		found := regexp.MustCompile(`- alert: ` + alert + `\n\s+expr: \|-\n\s+max by \(reason\) \(` + metric + `\{reason=~"([A-Za-z|]+)"\}\) > 0\n`).FindStringSubmatch(rules)
		if found == nil {
			t.Fatalf("the rule of %s was not found, or does not ask for %s by reason", alert, metric)
		}
		_, section, _ := strings.Cut(docs, "\n## "+alert+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		var rows []string
		for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(section, -1) {
			rows = append(rows, row[1])
		}
		for where, has := range map[string][]string{"its rule in deploy/monitoring/prometheusrule.yaml": strings.Split(found[1], "|"), "its table in docs/alerts.md": rows} {
			for _, r := range reasons {
				if !slices.Contains(has, r) {
					t.Errorf("%s: reason %s of %s is missing in %s; if it is to raise no such alert, say so in this test", alert, r, code, where)
				}
			}
			for _, r := range has {
				if !slices.Contains(reasons, r) {
					t.Errorf("%s: reason %s in %s is none of %s, or is said here to be told elsewhere", alert, r, where, code)
				}
			}
		}
		return reasons
	}

	m, registry := newMetrics(t)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, reason := range check("HoldfastNeedsAttention", "holdfast_condition", "internal/membership/reason.go", names(toldElsewhere)) {
		m.observe(&membership.Plan{Join: quorum.NewJoin(threeVoters(noon)), Notes: []membership.Note{{Reason: membership.Reason(reason)}}})
		if got := scrape(t, registry)["condition{"+reason+"}"]; got != 1 {
			t.Errorf("holdfast_condition{reason=%q} is %v after a look that notes it once, want 1", reason, got)
		}
	}
	check("HoldfastSetNeedsAttention", "holdfast_machineset_note", "internal/machineset/reason.go", names(setToldElsewhere))

	// What no transcript in test/decisions has, because no plan decides it.
	p := membership.Plan{Join: quorum.NewJoin(threeVoters(noon))}
	p.NoteWriteErrors(errors.New("quota"), errors.New("quota"))
	m.observe(&p)
	if got := scrape(t, registry)["condition{RecordsNotKept}"]; got != 2 {
		t.Errorf("holdfast_condition{reason=%q} is %v while neither records nor ledger can be written, want 2", "RecordsNotKept", got)
	}
	m.unread(quorum.Ring{}, membership.Unreadable(&quorum.Snapshot{}, errors.New("nodes is forbidden")).Notes)
	if got := scrape(t, registry)["condition{ClusterUnreadable}"]; got != 1 {
		t.Errorf("holdfast_condition{reason=%q} is %v while the Nodes cannot be read, want 1", "ClusterUnreadable", got)
	}
}

// names are a table's, as strings.
func names[R ~string](table map[R]string) map[string]string {
	out := map[string]string{}
	for reason, alert := range table {
		out[string(reason)] = alert
	}
	return out
}

// reasonsIn are the values of a file's constants of type Reason.
func reasonsIn(t *testing.T, path string) (reasons []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	must(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" && len(spec.Values) == 1 {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			must(t, err)
			reasons = append(reasons, value)
		}
		return true
	})
	if len(reasons) == 0 {
		t.Fatalf("%s has no constant of type Reason", path)
	}
	return reasons
}
