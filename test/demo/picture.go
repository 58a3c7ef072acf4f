package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
)

// picture remembers how each Machine was all along, and draws it.
type picture struct {
	lanes      []lane // in the order in which the Machines came
	voters     []span // how many etcd had
	begin, end time.Duration
}

// lane is what became of one Machine.
type lane struct {
	machine string
	spans   []span
}

// span is for how long something was so, since the demo began.
type span struct {
	from, to time.Duration
	state    string // of a Machine
	voters   int    // of etcd
}

// The states of a Machine, in the order of its life; each is a class of the picture's style.
const (
	starting = "starting" // it has no member yet
	learning = "learner"
	voting   = "voter"
	held     = "held"     // it is being deleted, and hosts a voter
	released = "released" // it is being deleted, and its member is gone
)

// see remembers a sight.
func (p *picture) see(at time.Duration, s *sight) {
	if p.voters == nil {
		p.begin = at
	}
	p.end = at
	for i := range s.machines {
		m := &s.machines[i]
		state := starting
		for _, e := range s.members {
			if e.name == m.Name && e.learner {
				state = learning
			} else if e.name == m.Name {
				state = voting
			}
		}
		switch {
		case m.Deleting() && state == voting:
			state = held
		case m.Deleting():
			state = released
		}
		p.lane(m.Name).spans = extend(p.lane(m.Name).spans, span{from: at, state: state})
	}
	p.voters = extend(p.voters, span{from: at, voters: s.voters()})
}

func (p *picture) lane(machine string) *lane {
	for i := range p.lanes {
		if p.lanes[i].machine == machine {
			return &p.lanes[i]
		}
	}
	p.lanes = append(p.lanes, lane{machine: machine})
	return &p.lanes[len(p.lanes)-1]
}

// extend has the last span last until now, and adds another if something is otherwise.
func extend(spans []span, now span) []span {
	now.to = now.from
	if n := len(spans); n > 0 {
		last := &spans[n-1]
		last.to = now.from
		if last.state == now.state && last.voters == now.voters {
			return spans
		}
	}
	return append(spans, now)
}

func (p *picture) fewest() int { return slices.MinFunc(p.voters, byVoters).voters }
func (p *picture) most() int   { return slices.MaxFunc(p.voters, byVoters).voters }

func byVoters(a, b span) int { return a.voters - b.voters }

// The picture's measures, in pixels.
const (
	width, margin, names = 900, 16, 190
	row, bar             = 26, 16
)

const style = `<style>
text{font:13px system-ui,sans-serif;fill:#24292f}.faint{fill:#6e7781}.starting{fill:#d0d7de}.learner{fill:#d4a72c}.voter{fill:#2da44e}.held{fill:#0969da}.released{fill:#8c959f}.grid{stroke:#d0d7de}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#8b949e}.starting{fill:#484f58}.released{fill:#6e7681}.grid{stroke:#30363d}}
</style>`

// svg draws a lane for each Machine, and below them how many voters etcd had.
func (p *picture) svg() string {
	var b strings.Builder
	height := margin + row*(len(p.lanes)+4)
	x := func(at time.Duration) float64 {
		return names + (width-names-margin)*float64(at-p.begin)/float64(max(p.end-p.begin, 1))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Each Machine of the demo's control plane, from its creation to its end, and how many voters etcd had: three or four at any time">%s`, width, height, style)
	y := margin
	for at := p.begin; at <= p.end; at += 10 * time.Second {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text class="faint" x="%.1f" y="%d">%.0f s</text>`, x(at), x(at), y, y+row*len(p.lanes)+row, x(at)+3, y+row*len(p.lanes)+2*row-8, (at - p.begin).Seconds())
	}
	for _, l := range p.lanes {
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`, margin, y+bar-3, html.EscapeString(l.machine))
		for _, s := range l.spans {
			fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`, s.state, x(s.from), y, max(1, x(s.to)-x(s.from)), bar, html.EscapeString(l.machine+": "+s.state))
		}
		y += row
	}
	fmt.Fprintf(&b, `<text class="faint" x="%d" y="%d">etcd's voters: %d to %d</text>`, margin, y+bar-3, p.fewest(), p.most())
	for _, s := range p.voters { // as high as there are many
		high := 4 * s.voters
		fmt.Fprintf(&b, `<rect class="voter" x="%.1f" y="%d" width="%.1f" height="%d"><title>%d voters</title></rect>`, x(s.from), y+bar-high, max(1, x(s.to)-x(s.from)), high, s.voters)
	}
	y += 2*row + 8
	at := margin
	for _, one := range [][2]string{{starting, "no member yet"}, {learning, "learner"}, {voting, "voter"}, {held, "deleted, and held: it votes still"}, {released, "released: drained and terminated"}} {
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="14" height="14"/><text x="%d" y="%d">%s</text>`, one[0], at, y, at+20, y+12, one[1])
		at += 40 + 7*len(one[1])
	}
	b.WriteString("</svg>\n")
	return b.String()
}
