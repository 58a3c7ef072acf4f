package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// The chart's measures, in pixels.
const (
	chartWidth, chartMargin, chartNames = 900, 16, 230
	barHeight, barGap, groupGap         = 14, 3, 12
)

const chartStyle = `<style>
text{font:13px system-ui,sans-serif;fill:#24292f}.faint{fill:#6e7781}.b0{fill:#8c959f}.b1{fill:#0969da}.b2{fill:#d4a72c}.b3{fill:#2da44e}.b4{fill:#bf3989}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#8b949e}}
</style>`

// chart draws the median time of each kind of request from one client, with each variant, as an SVG picture: a group of bars for a request.
func (r *report) chart() string {
	var (
		requests, with []string
		p50            = map[[2]string]float64{}
		longest        = 0.0
	)
	for i := range r.Latencies {
		l := &r.Latencies[i]
		if l.Clients != 1 {
			continue
		}
		if !slices.Contains(requests, l.Request) {
			requests = append(requests, l.Request)
		}
		if !slices.Contains(with, l.With) {
			with = append(with, l.With)
		}
		p50[[2]string{l.Request, l.With}] = l.P50
		longest = max(longest, l.P50)
	}
	var b strings.Builder
	y := chartMargin
	for _, request := range requests {
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`, chartMargin, y+barHeight-3, html.EscapeString(request))
		for k, variant := range with {
			ms, measured := p50[[2]string{request, variant}]
			if !measured {
				continue
			}
			long := float64(chartWidth-chartNames-80) * ms / max(longest, 0.001)
			fmt.Fprintf(&b, `<rect class="b%d" x="%d" y="%d" width="%.1f" height="%d"><title>%s, %s: %.2f ms</title></rect><text class="faint" x="%.1f" y="%d">%.1f ms</text>`,
				k%5, chartNames, y, max(long, 1), barHeight, html.EscapeString(request), html.EscapeString(variant), ms, chartNames+long+6, y+barHeight-3, ms)
			y += barHeight + barGap
		}
		y += groupGap
	}
	at := chartMargin
	for k, variant := range with {
		fmt.Fprintf(&b, `<rect class="b%d" x="%d" y="%d" width="14" height="14"/><text x="%d" y="%d">%s</text>`, k%5, at, y, at+20, y+12, html.EscapeString(variant))
		at += 44 + 7*len(variant)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Median time of each kind of request to the API server, without the guard and with it">%s%s</svg>`+"\n",
		chartWidth, y+30, chartStyle, b.String())
}
