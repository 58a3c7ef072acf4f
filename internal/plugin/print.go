package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// printEntries prints entries: as rows, or as the EventList that they are.
func printEntries(out io.Writer, format string, entries []audit.Entry) error {
	if format == "json" || format == "yaml" {
		list := auditv1.EventList{
			TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: auditv1.SchemeGroupVersion.String()},
			Items:    make([]auditv1.Event, 0, len(entries)),
		}
		for i := range entries {
			list.Items = append(list.Items, entries[i].Event)
		}
		return printData(out, format, list)
	}
	if len(entries) == 0 {
		_, err := fmt.Fprintln(out, "No records.")
		return err
	}
	rows := [][]string{entryHead(format)}
	for i := range entries {
		rows = append(rows, entryRow(format, &entries[i]))
	}
	return printRows(out, rows)
}

func entryHead(format string) []string {
	if format == "wide" {
		return []string{"TIME", "VERDICT", "RULE", "OPERATION", "MACHINE", "USER", "FIELD MANAGER", "HEALTHY", "WANTED", "DELETING", "OVERRIDE BY", "REQUEST UID", "RELEASE REASON", "REASON"}
	}
	return []string{"TIME", "VERDICT", "RULE", "OPERATION", "MACHINE", "USER", "REASON"}
}

// entryRow is a record in cells.
func entryRow(format string, e *audit.Entry) []string {
	verdict := e.Annotations[audit.VerdictAnnotation]
	if _, repeated := e.Annotations[audit.RepeatedAnnotation]; repeated {
		verdict += fmt.Sprintf(" x%d", e.Count())
	}
	if e.Abandoned() {
		verdict += " (abandoned)"
	}
	row := []string{at(e.Last()), verdict, e.Annotations[audit.RuleAnnotation], strings.ToUpper(e.Verb), e.Name(), e.User.Username}
	if format == "wide" {
		healthy, wanted, deleting := evidenceCells(e)
		return append(row, e.Annotations[audit.FieldManagerAnnotation], healthy, wanted, deleting,
			e.Annotations[audit.OverrideByAnnotation], string(e.AuditID), e.ReleaseReason(), reason(e))
	}
	said := shorten(reason(e), 80)
	switch given := e.ReleaseReason(); { // what a person said comes first: it is nowhere else
	case e.Abandoned():
		said = shorten("nobody waited for this answer: "+reason(e), 80)
	case given != "":
		said = shorten("\""+given+"\": "+reason(e), 80)
	}
	return append(row, said)
}

// reason is the first line of what Holdfast answered, without "Refused (rule):", which other columns say.
func reason(e *audit.Entry) string {
	said := e.Said()
	if len(said) == 0 {
		return ""
	}
	if _, rest, ok := strings.Cut(said[0], "("+e.Rules()[0]+")"); ok {
		return strings.TrimLeft(rest, ": ")
	}
	return said[0]
}

// evidenceCells are what a record's evidence says, in a cell each.
func evidenceCells(e *audit.Entry) (healthy, wanted, deleting string) {
	seen := e.Evidence()
	if seen == nil {
		return "", "", ""
	}
	switch {
	case seen.Voters > 0:
		healthy = fmt.Sprintf("%d/%d", seen.Healthy, seen.Voters)
	case seen.Unknown != "":
		healthy = "unknown"
	}
	if seen.Desired > 0 {
		wanted = fmt.Sprint(seen.Desired)
	}
	return healthy, wanted, strings.Join(seen.Deleting, ",")
}

// The columns to sum up by.
const (
	byUser    = "user"
	byRule    = "rule"
	byMachine = "machine"
)

// group is what one user, rule or Machine has to do with the others.
type group struct {
	Name     string         `json:"name"`
	Total    int            `json:"total"`
	Verdicts map[string]int `json:"verdicts"`
	Users    map[string]int `json:"users,omitempty"`
	Machines map[string]int `json:"machines,omitempty"`
	Rules    map[string]int `json:"rules,omitempty"`
	First    time.Time      `json:"first"`
	Last     time.Time      `json:"last"`
}

// summarize counts decisions, the repeated ones as often as they were made. One in which several
// rules had their say counts for each of them when summed up by rule, and else by its gravest verdict.
func summarize(by string, entries []audit.Entry) []group {
	groups := map[string]*group{}
	for i := range entries {
		e := &entries[i]
		rules, verdicts := e.Rules(), e.Verdicts()
		worst := slices.MinFunc(verdicts, func(a, b string) int { return cmp.Compare(gravity(a), gravity(b)) })
		switch by {
		case byUser:
			put(groups, e, e.User.Username, worst, rules)
		case byMachine:
			put(groups, e, e.Name(), worst, rules)
		default:
			for k, rule := range rules {
				verdict := worst
				if k < len(verdicts) {
					verdict = verdicts[k]
				}
				put(groups, e, rule, verdict, rules)
			}
		}
	}
	out := make([]group, 0, len(groups))
	for _, g := range groups {
		switch by { // a group's own name says nothing about it
		case byUser:
			g.Users = nil
		case byMachine:
			g.Machines = nil
		default:
			g.Rules = nil
		}
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b group) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Name, b.Name)) })
	return out
}

// gravity is the place of a verdict, the gravest first.
func gravity(verdict string) int {
	if i := slices.Index(verdictNames(), verdict); i >= 0 {
		return i
	}
	return len(verdictNames())
}

func put(groups map[string]*group, e *audit.Entry, name, verdict string, rules []string) {
	g := groups[name]
	if g == nil {
		g = &group{
			Name: name, First: e.First(), Last: e.Last(),
			Verdicts: map[string]int{}, Users: map[string]int{}, Machines: map[string]int{}, Rules: map[string]int{},
		}
		groups[name] = g
	}
	n := e.Count()
	g.Total += n
	g.Verdicts[verdict] += n
	g.Users[e.User.Username] += n
	g.Machines[e.Name()] += n
	for _, rule := range rules {
		g.Rules[rule] += n
	}
	if e.First().Before(g.First) {
		g.First = e.First()
	}
	if e.Last().After(g.Last) {
		g.Last = e.Last()
	}
}

// printSummary prints groups: as rows, or as data.
func printSummary(out io.Writer, format, by string, groups []group) error {
	if format == "json" || format == "yaml" {
		return printData(out, format, groups)
	}
	if len(groups) == 0 {
		_, err := fmt.Fprintln(out, "No records.")
		return err
	}
	head := []string{strings.ToUpper(by), "TOTAL"}
	for _, verdict := range verdictNames() {
		head = append(head, strings.ToUpper(verdict))
	}
	others := slices.DeleteFunc([]string{byMachine, byUser, byRule}, func(other string) bool { return other == by })
	for _, other := range others {
		head = append(head, strings.ToUpper(other)+"S")
	}
	rows := [][]string{append(head, "FIRST", "LAST")}
	most := 2
	if format == "wide" {
		most = len(groups) + 1<<20
	}
	for i := range groups {
		g := &groups[i]
		row := []string{g.Name, fmt.Sprint(g.Total)}
		for _, verdict := range verdictNames() {
			row = append(row, fmt.Sprint(g.Verdicts[verdict]))
		}
		for _, other := range others {
			row = append(row, tally(map[string]map[string]int{byMachine: g.Machines, byUser: g.Users, byRule: g.Rules}[other], most))
		}
		rows = append(rows, append(row, at(g.First), at(g.Last)))
	}
	return printRows(out, rows)
}

// tally names those who were counted, the busiest first, and how many more there are.
func tally(counts map[string]int, most int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var out []string
	for i, name := range names {
		if i == most {
			out = append(out, fmt.Sprintf("%d more", len(names)-most))
			break
		}
		out = append(out, fmt.Sprintf("%s (%d)", name, counts[name]))
	}
	return strings.Join(out, ", ")
}

// printRows aligns rows, the head first. Nothing in them is trusted: users choose names.
func printRows(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i := range row {
			if row[i] = plain(row[i]); row[i] == "" {
				row[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

func printData(out io.Writer, format string, data any) error {
	var written bytes.Buffer
	e := json.NewEncoder(&written)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(data); err != nil {
		return err
	}
	raw := escaped(written.Bytes())
	if format == "yaml" {
		var err error
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return err
		}
	}
	_, err := out.Write(raw)
	return err
}

// escaped is JSON with what a terminal would act on, or YAML does not take, as escapes: such runes stand
// in strings alone, and users choose those.
func escaped(raw []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(raw) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r > 0xffff: // YAML takes no pairs of escapes
			out.WriteRune(r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes()
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// plain is a text without what a terminal would act on.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// shorten cuts a text at a number of characters.
func shorten(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return strings.TrimSpace(string(runes[:most-1])) + "…"
}

// tail cuts off the beginning of a text that is longer than a number of characters: an error's cause is at its end.
func tail(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	end := string(runes[len(runes)-most+1:])
	if _, words, found := strings.Cut(end, " "); found {
		end = words
	}
	return "… " + strings.TrimSpace(strings.TrimRight(end, `"`))
}
