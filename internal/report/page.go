package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/sets"
)

//go:embed page.html
var pageText string

// HTML writes the report as one page that is complete in itself. version is Holdfast's.
func (r *Report) HTML(out io.Writer, version string) error {
	page, err := template.New("page").Funcs(r.functions()).Parse(pageText) // which escapes what anybody wrote
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	var text bytes.Buffer
	err = page.Execute(&text, struct {
		*Report

		Version                       string
		Machines, Users, Rules, Kinds []string
	}{
		Report: r, Version: version,
		Machines: r.distinct(func(i *Item) []string { return []string{i.Machine} }),
		Users:    r.distinct(func(i *Item) []string { return []string{i.User} }),
		Rules:    r.distinct(func(i *Item) []string { return strings.Split(i.Rule, ",") }),
		Kinds:    r.distinct(func(i *Item) []string { return []string{i.Class()} }),
	})
	if err != nil {
		return err
	}
	_, err = out.Write(bytes.Map(func(c rune) rune { // what somebody wrote may ring, or turn around what follows it
		if c != '\n' && !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, text.Bytes()))
	return err
}

// distinct are the values that items have, for a filter.
func (r *Report) distinct(of func(*Item) []string) []string {
	all := sets.New[string]()
	for i := range r.Items {
		all.Insert(of(&r.Items[i])...)
	}
	return sets.List(all.Delete(""))
}

// functions are those of the template. The time axis of its drawing goes from left to right, and has a row for each lane.
func (r *Report) functions() template.FuncMap {
	const left, right, top, height = 190, 990, 30, 34
	span := max(r.To.Sub(r.From), time.Second)
	x := func(t time.Time) float64 {
		share := float64(t.Sub(r.From)) / float64(span)
		return left + (right-left)*min(max(share, 0), 1)
	}
	layout := func(layout string) func(time.Time) string {
		return func(t time.Time) string { return t.UTC().Format(layout) }
	}
	tick := layout("15:04:05")
	if span > 36*time.Hour {
		tick = layout("Jan 2 15:04")
	}
	return template.FuncMap{
		"clock": layout("15:04:05"), "exact": layout("2006-01-02 15:04:05.000"), "stamp": layout(time.RFC3339), "tick": tick,
		"join":  func(lines []string) string { return strings.Join(lines, "\n") },
		"x":     x,
		"width": func(s Span) float64 { return max(x(s.To)-x(s.From), 1) },
		"y":     func(row int) int { return top + height*row },
		"below": func(mark int) int { return 10 + mark%3*8 }, // so that marks of the same time are side by side
		"ticks": func() (out []time.Time) {
			for k := range 6 {
				out = append(out, r.From.Add(span*time.Duration(k)/5))
			}
			return out
		},
		"sign": func(class string) string { // tells marks apart without colours
			return map[string]string{"denied": "✕", "overridden": "!", "repaired": "↺", "allowed": "●", "warning": "▲", "step": "■", "event": "○"}[class]
		},
	}
}

// Row is a lane of the page's drawing, with its items.
type Row struct {
	Lane
	Items []int
}

// Rows are the lanes, and a row for each other thing that items are about.
func (r *Report) Rows() (rows []Row) {
	for _, l := range r.Lanes {
		rows = append(rows, Row{Lane: l})
	}
	for i := range r.Items {
		name := cmp.Or(r.Items[i].Machine, "control plane")
		at := slices.IndexFunc(rows, func(row Row) bool { return row.Machine == name })
		if at < 0 {
			at, rows = len(rows), append(rows, Row{Lane: Lane{Machine: name}})
		}
		rows[at].Items = append(rows[at].Items, i)
	}
	return rows
}

// Phase is a part of a replacement.
type Phase struct {
	Name  string
	Class string // of its colour
	Time  time.Duration
}

// Length is the phase's time for people.
func (p Phase) Length() string { return seconds(p.Time) }

// Phases are the parts of a replacement that were seen, one after the other.
func (p *Replacement) Phases() (out []Phase) {
	type mark struct {
		name, class string
		at          time.Time
	}
	marks := []mark{
		{"waits for a new member", "waits", p.Learner}, {"the new member learns", "learns", p.Votes},
		{"the old member leaves", "leaves", p.Left}, {"the old Machine goes", "goes", p.Gone},
	}
	slices.SortStableFunc(marks, func(a, b mark) int { return a.at.Compare(b.at) }) // the new one may come after the old one is gone
	at := p.Deleted
	for _, next := range marks {
		if next.at.After(at) {
			out = append(out, Phase{next.name, next.class, next.at.Sub(at)})
			at = next.at
		}
	}
	return out
}

// Took is the time of a replacement, for people.
func (p *Replacement) Took() string {
	if p.Gone.IsZero() {
		return "it goes on"
	}
	return seconds(p.Gone.Sub(p.Deleted))
}

func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
