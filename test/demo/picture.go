package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// moment is what the picture needs of a sight.
type moment struct {
	at     time.Duration
	states map[string]string // of each Machine; a class of the picture's style
	voters int               // that run
}

// state is that of a Machine.
func state(m *machineSight) string {
	switch {
	case m.Deleting() && m.Protected():
		return "held"
	case m.Deleting():
		return "released"
	case m.etcd == "-":
		return "starting"
	}
	return m.etcd
}

const style = `<style>
text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.faint{fill:#6e7781}.starting{fill:#d0d7de}.learner{fill:#d4a72c}.voter{fill:#2da44e}.held{fill:#0969da}.released{fill:#8c959f}.lost{fill:#cf222e}.grid{stroke:#d0d7de}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#8b949e}.starting{fill:#484f58}.released{fill:#6e7681}.grid{stroke:#30363d}}
</style>`

// panel is what became of one control plane.
type panel struct {
	title string
	seen  []moment
}

// length is how long that took. What is lost stays so, and is shown for some time.
func (p panel) length() time.Duration {
	last := p.seen[len(p.seen)-1]
	if slices.Contains(slices.Collect(maps.Values(last.states)), "lost") {
		last.at += 10 * time.Second
	}
	return last.at - p.seen[0].at
}

// draw is an SVG with a part for each control plane, all to one scale of time. A part has a lane for each Machine, in the order in which they
// came, and below them one for how many voters etcd had.
func draw(panels ...panel) string {
	const width, margin, left, row = 900, 16, 190, 26 // pixels
	var longest time.Duration
	for _, p := range panels {
		longest = max(longest, p.length())
	}
	x := func(at time.Duration) float64 { return left + (width-left-margin)*float64(at)/float64(longest) }
	var b strings.Builder
	y := margin
	for _, p := range panels {
		var names []string
		for _, m := range p.seen {
			for _, name := range slices.Sorted(maps.Keys(m.states)) {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		fmt.Fprintf(&b, `<text class="title" x="%d" y="%d">%s</text>`, margin, y+13, p.title)
		y += row
		begin, end := p.seen[0].at, p.seen[0].at+p.length()
		bottom := y + row*(len(names)+1)
		for at := time.Duration(0); at <= end-begin; at += 10 * time.Second {
			fmt.Fprintf(&b, `<line class="grid" x1="%.1[1]f" x2="%.1[1]f" y1="%[2]d" y2="%[3]d"/><text class="faint" x="%.1[4]f" y="%[5]d">%.0[6]f s</text>`,
				x(at), y, bottom, x(at)+3, bottom+row-8, at.Seconds())
		}
		lane := func(title string, of func(moment) (class, what string, high int)) {
			fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`, margin, y+13, title)
			for i := 0; i < len(p.seen); {
				class, what, high := of(p.seen[i])
				from, to := p.seen[i].at, end
				for ; i < len(p.seen); i++ {
					if _, now, _ := of(p.seen[i]); now != what {
						to = p.seen[i].at
						break
					}
				}
				if class != "" {
					fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`,
						class, x(from-begin), y+16-high, max(1, x(to-begin)-x(from-begin)), high, what)
				}
			}
			y += row
		}
		for _, name := range names {
			lane(name, func(m moment) (class, what string, high int) { return m.states[name], name + ": " + m.states[name], 16 })
		}
		lane("etcd's voters", func(m moment) (class, what string, high int) {
			class = "voter"
			if m.voters < 2 { // of three
				class = "lost"
			}
			return class, fmt.Sprint(m.voters, " voters"), 4 * m.voters
		})
		y += 2 * row
	}
	at := margin
	for _, l := range [...][2]string{
		{"starting", "no member yet"}, {"learner", "learner"}, {"voter", "voter"}, {"held", "deleted, and held"},
		{"released", "released: drained and terminated"}, {"lost", "no quorum"},
	} {
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="14" height="14"/><text x="%d" y="%d">%s</text>`, l[0], at, y, at+20, y+12, l[1])
		at += 40 + 7*len(l[1])
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Each Machine of a control plane, from its creation to its end, and how many of etcd's voters ran">%s%s</svg>
`, width, y+row, style, b.String())
}
