package waysin_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the tables of docs/proof/attacks.md")
	m.Run()
}

func dryRun() client.CreateOption { return client.DryRunAll }

// What stands between these in docs/proof/attacks.md is made by document.
const (
	begin = "<!-- Made by go test ./test/waysin -run TestDocument -update. -->\n"
	end   = "<!-- Written by hand from here. -->\n"
)

// document has a table for each state of a Machine: a line for all rows with one outcome for the same users.
func document() string {
	type line struct {
		what, who string
		names     []string
	}
	out := &strings.Builder{}
	for _, state := range []when{live, deleting} {
		title := "A live Machine"
		if state == deleting {
			title = "While a Machine's deletion is held"
		}
		fmt.Fprintf(out, "\n### %s\n\n| what happens | who | requests |\n|---|---|---|\n", title)
		var lines []*line
		for _, w := range ways() {
			if w.on != state {
				continue
			}
			what, who := outcomeText(w.want), whoText(w.who)
			at := slices.IndexFunc(lines, func(l *line) bool { return l.what == what && l.who == who })
			if at < 0 {
				at, lines = len(lines), append(lines, &line{what: what, who: who})
			}
			name := w.name
			if w.dryOnly {
				name += "†"
			}
			if w.note != "" {
				name += " (" + w.note + ")"
			}
			lines[at].names = append(lines[at].names, name)
		}
		first := func(l *line) int {
			return slices.IndexFunc(lines, func(other *line) bool { return other.what == l.what })
		}
		sorted := slices.Clone(lines)
		slices.SortStableFunc(sorted, func(a, b *line) int { return first(a) - first(b) })
		for _, l := range sorted {
			fmt.Fprintf(out, "| %s | %s | %s |\n", l.what, l.who, strings.Join(l.names, "<br>"))
		}
	}
	return out.String() + "\n"
}

// outcomeText is an outcome in the table's words.
func outcomeText(o outcome) string {
	switch o {
	case passes:
		return "passes"
	case unreadable:
		return "denied: Holdfast cannot read it"
	}
	if rule, ok := strings.CutPrefix(string(o), "denied: "); ok {
		return "denied: `" + rule + "`"
	}
	if _, rule, ok := strings.Cut(string(o), ", with a Warning: "); ok {
		return "Warning: `" + rule + "`"
	}
	return string(o)
}

// whoText names users, and groups of them where all of a group are there.
func whoText(who []sandbox.Identity) string {
	var names []string
	for _, group := range []struct {
		name string
		of   []sandbox.Identity
	}{{"everyone", everyone()}, {"people", people()}, {"automation", automation()}} {
		if !slices.ContainsFunc(group.of, func(id sandbox.Identity) bool { return !slices.Contains(who, id) }) {
			names = append(names, group.name)
			who = slices.DeleteFunc(slices.Clone(who), func(id sandbox.Identity) bool { return slices.Contains(group.of, id) })
		}
	}
	for _, id := range who {
		names = append(names, id.File())
	}
	return strings.Join(names, ", ")
}
