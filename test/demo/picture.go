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
	voters int
}

// state is that of a Machine.
func state(m *machineSight) string {
	switch {
	case m.Deleting() && m.etcd == "voter":
		return "held"
	case m.Deleting():
		return "released"
	case m.etcd == "-":
		return "starting"
	}
	return m.etcd
}

const style = `<style>
text{font:13px system-ui,sans-serif;fill:#24292f}.faint{fill:#6e7781}.starting{fill:#d0d7de}.learner{fill:#d4a72c}.voter{fill:#2da44e}.held{fill:#0969da}.released{fill:#8c959f}.grid{stroke:#d0d7de}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#8b949e}.starting{fill:#484f58}.released{fill:#6e7681}.grid{stroke:#30363d}}
</style>`

// draw is an SVG with a lane for each Machine, in the order in which they came, and below them one for how many voters etcd had.
func draw(seen []moment) string {
	var names []string
	for _, m := range seen {
		for _, name := range slices.Sorted(maps.Keys(m.states)) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	const width, margin, left, row = 900, 16, 190, 26 // pixels
	begin, end := seen[0].at, seen[len(seen)-1].at
	x := func(at time.Duration) float64 {
		return left + (width-left-margin)*float64(at-begin)/float64(max(end-begin, 1))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Each Machine of the demo's control plane, from its creation to its end, and how many voters etcd had: three or four at any time">%s`, width, margin+row*(len(names)+4), style)
	for at := begin; at <= end; at += 10 * time.Second {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1[1]f" x2="%.1[1]f" y1="%[2]d" y2="%[3]d"/><text class="faint" x="%.1[4]f" y="%[5]d">%.0[6]f s</text>`,
			x(at), margin, margin+row*(len(names)+1), x(at)+3, margin+row*(len(names)+2)-8, (at - begin).Seconds())
	}
	y := margin
	lane := func(title string, of func(moment) (class, what string, high int)) {
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`, margin, y+13, title)
		for i := 0; i < len(seen); {
			class, what, high := of(seen[i])
			from := seen[i].at
			for ; i < len(seen); i++ {
				if _, now, _ := of(seen[i]); now != what {
					break
				}
			}
			if class != "" {
				fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`,
					class, x(from), y+16-high, max(1, x(seen[min(i, len(seen)-1)].at)-x(from)), high, what)
			}
		}
		y += row
	}
	for _, name := range names {
		lane(name, func(m moment) (class, what string, high int) { return m.states[name], name + ": " + m.states[name], 16 })
	}
	lane("etcd's voters", func(m moment) (class, what string, high int) {
		return "voter", fmt.Sprint(m.voters, " voters"), 4 * m.voters
	})
	at := margin
	for _, one := range [][2]string{{"starting", "no member yet"}, {"learner", "learner"}, {"voter", "voter"}, {"held", "deleted, and held: it votes still"}, {"released", "released: drained and terminated"}} {
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="14" height="14"/><text x="%d" y="%d">%s</text>`, one[0], at, y+row+8, at+20, y+row+20, one[1])
		at += 40 + 7*len(one[1])
	}
	b.WriteString("</svg>\n")
	return b.String()
}
