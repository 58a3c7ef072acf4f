package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
)

//go:embed page.html
var pageText string

// HTML writes the report as one page that is complete in itself. version is of who made it.
func (r *Report) HTML(out io.Writer, version string) error {
	page, err := template.New("page").Funcs(template.FuncMap{ // which escapes what anybody wrote
		"clock": func(t time.Time) string { return t.UTC().Format("15:04:05") },
		"exact": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") },
		"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"join":  func(lines []string) string { return strings.Join(lines, "\n") },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	var text bytes.Buffer
	err = page.Execute(&text, struct {
		*Report
		drawing

		Version                       string
		Machines, Users, Rules, Kinds []string
		Phased                        []phased
	}{
		Report: r, drawing: r.draw(), Version: version,
		Machines: r.distinct(func(i *Item) []string { return []string{i.Machine} }),
		Users:    r.distinct(func(i *Item) []string { return []string{i.User} }),
		Rules:    r.distinct(func(i *Item) []string { return strings.Split(i.Rule, ",") }),
		Kinds:    r.distinct(func(i *Item) []string { return []string{i.Class()} }),
		Phased:   r.phases(),
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
func (r *Report) distinct(of func(*Item) []string) (out []string) {
	for i := range r.Items {
		out = append(out, of(&r.Items[i])...)
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(v string) bool { return v == "" })
}

// Phase is a part of a replacement.
type Phase struct {
	Name  string
	Class string // of its colour
	Took  time.Duration
	More  int // of 1000: its width
}

type phased struct {
	Replacement
	Phases []Phase
	Took   string
}

// Phases are the parts of a replacement that were seen, one after the other.
func (p *Replacement) Phases() (out []Phase) {
	at := p.Deleted
	for _, next := range [...]struct {
		name, class string
		at          time.Time
	}{
		{"waits for a new member", "waits", p.Learner}, {"the new member learns", "learns", p.Votes},
		{"the old member leaves", "leaves", p.Left}, {"the old Machine goes", "goes", p.Gone},
	} {
		if !next.at.IsZero() && next.at.After(at) {
			out = append(out, Phase{Name: next.name, Class: next.class, Took: next.at.Sub(at)})
			at = next.at
		}
	}
	return out
}

func (r *Report) phases() (out []phased) {
	for _, p := range r.Replacements {
		one := phased{Replacement: p, Phases: p.Phases(), Took: "it goes on"}
		if !p.Gone.IsZero() {
			total := max(p.Gone.Sub(p.Deleted), time.Millisecond)
			one.Took = Seconds(total)
			for k := range one.Phases {
				one.Phases[k].More = int(1000 * one.Phases[k].Took / total)
			}
		}
		out = append(out, one)
	}
	return out
}

// Length is the phase's time for people.
func (p Phase) Length() string { return Seconds(p.Took) }

// Seconds is a duration as people say it.
func Seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// The drawing's measures, in its own units.
const (
	left, right = 190, 990 // of the time axis
	laneHeight  = 34
	top         = 30
)

// drawing is the lanes in the units of an SVG.
type drawing struct {
	Height int
	Ticks  []tick
	Rows   []row
}

type tick struct {
	X      float64
	Anchor string
	Text   string
}

type row struct {
	Name  string
	Y     int
	Bars  []bar
	Marks []mark
}

type bar struct {
	X, Width float64
	Class    string
	Text     string
}

type mark struct {
	X     float64
	Y     int
	Index int // of the item
	Class string
	Sign  string
	Text  string
}

// sign tells marks apart without colours.
func sign(class string) string {
	return map[string]string{"denied": "✕", "overridden": "!", "repaired": "↺", "allowed": "●", "warning": "▲", "step": "■", "event": "○"}[class]
}

func (r *Report) draw() (d drawing) {
	span := max(r.To.Sub(r.From), time.Second)
	x := func(t time.Time) float64 {
		share := float64(t.Sub(r.From)) / float64(span)
		return left + (right-left)*min(max(share, 0), 1)
	}
	form := "15:04:05"
	if span > 36*time.Hour {
		form = "Jan 2 15:04"
	}
	for k := range 6 {
		at := r.From.Add(span * time.Duration(k) / 5)
		anchor := "middle"
		if k == 5 {
			anchor = "end" // or it is cut off
		}
		d.Ticks = append(d.Ticks, tick{x(at), anchor, at.UTC().Format(form)})
	}
	lane := func(name string) *row {
		if k := slices.IndexFunc(d.Rows, func(one row) bool { return one.Name == name }); k >= 0 {
			return &d.Rows[k]
		}
		d.Rows = append(d.Rows, row{Name: name, Y: top + laneHeight*len(d.Rows)})
		return &d.Rows[len(d.Rows)-1]
	}
	for _, l := range r.Lanes {
		one := lane(l.Machine)
		for _, s := range l.Member {
			one.Bars = append(one.Bars, bar{x(s.From), max(x(s.To)-x(s.From), 1), strings.ReplaceAll(string(s.State), " ", "-"), string(s.State)})
		}
		for _, s := range l.Deleting {
			one.Bars = append(one.Bars, bar{x(s.From), max(x(s.To)-x(s.From), 1), "deleting", "being deleted"})
		}
	}
	for k := range r.Items {
		i := &r.Items[k]
		name := i.Machine
		if name == "" {
			name = "control plane"
		}
		one := lane(name)
		m := mark{X: x(i.At), Y: one.Y + 10, Index: k, Class: i.Class(), Sign: sign(i.Class())}
		m.Text = strings.Join(slices.DeleteFunc([]string{i.At.UTC().Format("15:04:05"), m.Class, i.What, i.Rule, i.User}, func(s string) bool { return s == "" }), ", ")
		for n := len(one.Marks); n > 0 && m.X-one.Marks[n-1].X < 9; n = 0 { // beside the one before
			m.Y = one.Marks[n-1].Y + 8
			if m.Y > one.Y+26 {
				m.Y = one.Y + 10
			}
		}
		one.Marks = append(one.Marks, m)
	}
	d.Height = top + laneHeight*len(d.Rows) + 10
	return d
}
