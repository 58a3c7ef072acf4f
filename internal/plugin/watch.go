package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/report"
)

// follow shows the cluster until the context ends. On a screen each look replaces the one before;
// elsewhere those that differ follow each other.
func (o *statusOptions) follow(ctx context.Context, t terminal, c *cluster) error {
	again := time.NewTicker(2 * time.Second)
	defer again.Stop()
	var before string
	for {
		var seen bytes.Buffer
		if v, err := c.look(ctx); err == nil {
			if err := o.print(&seen, v, narrow(t.out)); err != nil {
				return err
			}
			v.watched(ctx, c, &seen)
		} else {
			fmt.Fprintf(&seen, "Not seen: %s\n", plain(err.Error())) // it may well answer the next time
		}
		if ctx.Err() != nil {
			return nil
		}
		text := seen.String()
		if _, ok := t.out.(*screen); ok {
			fmt.Fprint(t.out, "\x1b[H\x1b[2J") // the screen is cleared
		} else if ageless(text) == ageless(before) {
			text = ""
		}
		if text != "" {
			if _, err := fmt.Fprintf(t.out, "%s\n%s", at(t.now()), text); err != nil {
				return err
			}
			before = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// watched prints what is worth watching: how far each replacement is, and the last Events.
func (v *view) watched(ctx context.Context, c *cluster, out io.Writer) {
	fmt.Fprintln(out)
	all := len(membership.Phases())
	for _, r := range membership.Replacements(v.Snapshot) {
		if m := v.Machine(r.Machine); m != nil {
			done := int(r.Phase) - 1
			fmt.Fprintf(out, "Replacement of %s: [%s>%s] %d of %d done, waits for %s (%s so far)\n", plain(r.Machine),
				strings.Repeat("=", done), strings.Repeat(".", all-1-done), done, all, v.phaseWords(r.Phase), v.age(m.DeletedAt))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	events, err := eventsAbout(ctx, c.Client, c.namespace, func(name string) bool { return v.Machine(name) != nil })
	if err != nil {
		fmt.Fprintf(out, "Events are not known: %s\n", plain(err.Error()))
		return
	}
	items := report.New(nil, report.Wanted{Events: events}).Items
	if len(items) == 0 {
		return
	}
	fmt.Fprintln(out, "\nLast Events:")
	for _, item := range items[max(0, len(items)-5):] {
		indented(out, fmt.Sprintf("%s  %s  %s: %s", item.At.UTC().Format("15:04:05"), item.Machine, item.What, shorten(strings.Join(item.Said, " "), 100)))
	}
}

// ages are what changes with each look, although nothing has happened.
var ages = regexp.MustCompile(`\b(\d+(\.\d+)? ?(ms|s|min|m|h|days|d))+\b`)

func ageless(text string) string { return ages.ReplaceAllString(text, "") }
