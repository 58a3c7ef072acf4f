package waysin_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestWaysIn sends every row, dry and for real, and compares what the guard protects before and after.
func TestWaysIn(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	waysIn(t, "full")
}

// TestWaysInGuard sends every row once in guard mode, beside a stand-in for cluster-etcd-operator.
func TestWaysInGuard(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	waysIn(t, "guard")
}

func waysIn(t *testing.T, mode string) {
	t.Helper()
	c := start(t, mode)
	c.guard = mode == "guard"
	c.webhooksOfMachineAPI(t)
	t.Run(string(live), func(t *testing.T) { c.try(t, live, "master-1", "master-2") })
	t.Run("the deletion is held", func(t *testing.T) {
		cl, heard := c.as(t, sandbox.Alice)
		if err := cl.Delete(t.Context(), c.get(t.Context(), t, "master-0")); err != nil {
			t.Fatal(err)
		}
		if got := outcomeOf(nil, heard.lines); got != warned("held") {
			t.Fatalf("%s: %q", got, heard.lines)
		}
	})
	t.Run(string(deleting), func(t *testing.T) { c.try(t, deleting, "master-0", "master-1") })
	if err := c.whole(t.Context()); err != nil {
		t.Error(err)
	}
	t.Run("Holdfast hangs", c.hung)
}

// try sends the rows about a Machine in that state.
func (c *cluster) try(t *testing.T, state when, on, other string) {
	for _, w := range ways() {
		if w.on != state {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			if w.padded {
				c.pad(t.Context(), t, on, strings.Repeat("[", 9996)+strings.Repeat("]", 9996))
				defer c.pad(t.Context(), t, on, "null")
			}
			for _, who := range w.who {
				t.Run(who.File(), func(t *testing.T) {
					if !w.realOnly && (!c.guard || w.dryOnly) {
						c.send(t, &w, who, on, other, true)
					}
					if !w.dryOnly {
						c.send(t, &w, who, on, other, false)
					}
				})
			}
		})
	}
}

// send sends one row once.
func (c *cluster) send(t *testing.T, w *way, who sandbox.Identity, on, other string, dry bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	before := c.guarded(ctx, t)
	r := &request{cluster: c, who: who, dry: dry}
	var heard *warnings
	r.client, heard = c.as(t, who)
	var said []string
	var err error
	again := func() bool {
		switch {
		case err == nil:
			return false
		case w.want == unreadable && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"):
			return true // the webhook did not have all of it in time, and the policy refused it instead
		}
		// A controller has written the Machine meanwhile.
		return strings.Contains(err.Error(), "the object has been modified")
	}
	NewWithT(t).Eventually(func() bool {
		heard.lines = nil
		r.on, r.other = c.get(ctx, t, on), c.get(ctx, t, other)
		said, err = w.send(ctx, r)
		return !again()
	}).WithTimeout(within).Should(BeTrue())
	said = append(said, heard.lines...)
	if got := outcomeOf(err, said); got != w.want {
		t.Errorf("dry run %t: %s, not %s\nerror: %v\nwarnings: %s", dry, got, w.want, err, strings.Join(said, "\n"))
	}
	if w.undo != nil && err == nil && !dry {
		if r.client, heard = c.as(t, who); r.client != nil {
			r.on = c.get(ctx, t, on)
		}
		if _, err := w.undo(ctx, r); err != nil {
			t.Fatalf("taking it back: %v", err)
		}
	}
	if diff := cmp.Diff(before, c.guarded(ctx, t)); diff != "" {
		t.Errorf("dry run %t: what is guarded has changed:\n%s", dry, diff)
	}
	if !dry {
		if err := c.whole(ctx); err != nil {
			t.Error(err)
		}
	}
}

// webhooksOfMachineAPI waits until machine-api-operator's own webhooks answer beside Holdfast's: its
// defaulter gives a Machine the cluster's label.
func (c *cluster) webhooksOfMachineAPI(t *testing.T) {
	t.Helper()
	cl, _ := c.as(t, sandbox.Alice)
	eventually(t, func(ctx context.Context) error {
		m := c.get(ctx, t, "master-1")
		m.Name, m.ResourceVersion, m.UID, m.Labels, m.Spec.ProviderID = "probe", "", "", nil, nil
		if err := cl.Create(ctx, m, dryRun()); err != nil {
			return err
		}
		if m.Labels["machine.openshift.io/cluster-api-cluster"] != "sandbox" {
			return fmt.Errorf("labels %v", m.Labels)
		}
		return nil
	})
}

// TestDocument keeps the tables of docs/proof/attacks.md as ways has them; -update writes them.
func TestDocument(t *testing.T) {
	root, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "docs", "proof", "attacks.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	got, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the tables, between %q and %q", path, begin, end)
	}
	want := document()
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/proof/attacks.md is not what the table says; go test ./test/waysin -run TestDocument -update\n%s", diff)
	}
}
