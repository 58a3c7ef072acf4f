package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a run found. Times are in milliseconds.
type report struct {
	When                  time.Time
	LoadBefore, LoadAfter string // of the computer, as /proc/loadavg has it
	Rounds, Requests      int
	Latencies             []latency
	Figures               []figure
}

// latency is how long requests of a kind took.
type latency struct {
	Section, Request, With string
	Clients                int // requests in flight
	Count                  int
	P50, P99               float64
	PerSecond              float64
	CPU                    float64 `json:",omitempty"` // of the webhook's process, per request
	Calls                  float64 `json:",omitempty"` // of webhooks, per request, by the API server's own count
	// Otherwise are the answers that were not those that were to come: the API server gave up on the webhook.
	Otherwise int     `json:",omitempty"`
	Ratio     float64 `json:",omitempty"` // of the p50, to what it is compared with
}

// figure is one number. Bar is the most that it may be, 0 for none.
type figure struct {
	Section, What string
	Value         float64
	Unit          string
	Bar           float64 `json:",omitempty"`
}

func (r *report) figure(section, what string, value float64, unit string, bar float64) {
	r.Figures = append(r.Figures, figure{section, what, value, unit, bar})
	progress("%s: %s: %s", section, what, number(value)+" "+unit)
}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s; load %s before, %s after; %d rounds of %d requests\n\n", r.When.Format(time.DateTime), r.LoadBefore, r.LoadAfter, r.Rounds, r.Requests)
	w := tabwriter.NewWriter(out, 2, 8, 2, ' ', 0)
	if len(r.Latencies) > 0 {
		fmt.Fprintln(w, "request\twith\tclients\tp50 ms\tp99 ms\tper second\tratio p50\tcalls\tCPU ms\totherwise")
		for _, l := range r.Latencies {
			fmt.Fprintf(w, "%s: %s\t%s\t%d\t%.2f\t%.2f\t%.0f\t%s\t%s\t%s\t%s\n", l.Section, l.Request, l.With, l.Clients, l.P50, l.P99, l.PerSecond, some(l.Ratio), some(l.Calls), some(l.CPU), strings.TrimSuffix(some(float64(l.Otherwise)), ".000"))
		}
		fmt.Fprintln(w)
	}
	if len(r.Figures) > 0 {
		fmt.Fprintln(w, "figure\tvalue\tunit\tbar\t")
		for _, f := range r.Figures {
			bar := ""
			if f.Bar > 0 {
				bar = number(f.Bar)
				if f.Value > f.Bar {
					bar += " (missed)"
				}
			}
			fmt.Fprintf(w, "%s: %s\t%s\t%s\t%s\n", f.Section, f.What, number(f.Value), f.Unit, bar)
		}
	}
	_ = w.Flush() // the terminal may be gone
}

func some(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f", v)
}

func number(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile is the value below which a part of the samples lies.
func quantile[T int64 | float64 | time.Duration](samples []T, part float64) T {
	if len(samples) == 0 {
		return 0
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	return s[min(int(part*float64(len(s))), len(s)-1)]
}

// load is the load of the computer over the last minute.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(raw), " ")
	return first
}
