package plugin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// follow shows the cluster until the context ends. On a terminal each look replaces the one before; elsewhere those that differ follow each
// other.
func (o *statusOptions) follow(ctx context.Context, t terminal, c *cluster) error {
	clear := ""
	if f, ok := t.out.(*os.File); ok && isTerminal(f) {
		clear = "\x1b[H\x1b[2J"
	}
	before := ""
	err := wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(context.Context) (bool, error) {
		var seen bytes.Buffer
		if v, err := c.look(ctx); err != nil {
			fmt.Fprintf(&seen, "Not seen: %s\n", plain(err.Error())) // it may well answer the next time
		} else if err := o.print(&seen, widthOf(t.out), v); err != nil {
			return false, err
		}
		text := seen.String()
		if ctx.Err() == nil && (clear != "" || ageless(text) != ageless(before)) {
			before = text
			if _, err := fmt.Fprintf(t.out, "%s%s\n%s", clear, at(t.now()), text); err != nil {
				return false, err
			}
		}
		return false, nil
	})
	if wait.Interrupted(err) {
		return nil
	}
	return err
}

// ages are what changes with each look, although nothing has happened.
var ages = regexp.MustCompile(`\b(\d+(ms|s|m|h|d|y))+\b`)

func ageless(text string) string { return ages.ReplaceAllString(text, "") }
