package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

type statusOptions struct {
	*clusterFlags
	file, output string
	watch        bool
}

func statusCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := statusOptions{clusterFlags: c}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show etcd's ring, each control-plane Machine, and what it waits for",
		Long: `Show etcd's ring, and each control-plane Machine with its Node, etcd member, hook and latch, and what
it waits for. Below the table stands what Holdfast does next, as far as this command can see, and what
you should know.

etcd is shown as Holdfast saw it last, which it publishes every 30 s and after each change. What is older than a minute
is not shown. With flags or variables as for etcdctl, etcd itself is asked: then what takes some time (a dead
voter, a learner that keeps up) shows with --watch.

-o yaml and -o json write all that a decision is made on: simulate, explain and status read it with -f.`,
		Example: `  kubectl holdfast status

  # While a replacement is under way
  kubectl holdfast status --watch

  # While Holdfast is down: ask etcd itself
  export ETCDCTL_ENDPOINTS=https://10.0.0.1:2379 ETCDCTL_CACERT=ca.crt ETCDCTL_CERT=client.crt ETCDCTL_KEY=client.key
  kubectl holdfast status

  # For a support case
  kubectl holdfast status -o yaml > snapshot.yaml`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	f := cmd.Flags()
	bindFile(f, &o.file)
	f.StringVarP(&o.output, "output", "o", "table", "table, json or yaml")
	f.BoolVarP(&o.watch, "watch", "w", false, "show it anew every 2 s, until Ctrl-C")
	return cmd
}

func (o *statusOptions) run(ctx context.Context, t terminal) error {
	if err := oneOf("output", []string{"table", "json", "yaml"}, o.output); err != nil {
		return err
	}
	if !o.watch {
		v, err := o.take(ctx, t, o.file)
		if err != nil {
			return err
		}
		return o.print(t.out, widthOf(t.out), v)
	}
	if o.file != "" || o.output == "json" || o.output == "yaml" {
		return cli.Usage("--watch shows a cluster as a table; it does not go with --filename or -o %s", o.output)
	}
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	return o.follow(ctx, t, c)
}

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

func (o *statusOptions) print(out io.Writer, width int, v *view) error {
	if o.output != "table" {
		return printData(out, o.output, snapshotfile.Of(v.Snapshot, v.namespace))
	}
	fmt.Fprintf(out, "Etcd: %s\n", plain(v.etcdLine()))
	if v.source != "" {
		fmt.Fprintf(out, "      %s\n", plain(v.source))
	}
	if v.guard != "" {
		fmt.Fprintf(out, "Guard: %s\n", plain(v.guard))
	}
	fmt.Fprintf(out, "Mode: %s\n", v.modeLine())
	v.setLines(out)
	fmt.Fprintln(out)
	if err := printRows(out, width, v.rows(), "ID", "NODE", "HOOK", "LATCH"); err != nil {
		return err
	}
	fmt.Fprintln(out)
	v.next(out)
	return nil
}

// rows are the Machines, then the members that belong to none.
func (v *view) rows() [][]string {
	rows := [][]string{{"MACHINE", "PHASE", "NODE", "MEMBER", "ID", "ROLE", "HEALTH", "HOOK", "LATCH", "WAITS FOR"}}
	for i := range v.Machines {
		m := &v.Machines[i]
		node := "" // the Machine API's link may name a Node that is gone
		if n := v.join.Node(m); n != nil {
			node = nodeCell(n)
		} else if m.NodeName != "" {
			node = m.NodeName + " (gone)"
		}
		phase := m.Phase
		if m.Deleting() {
			phase = "Deleting (" + v.age(m.DeletedAt) + ")"
		}
		members := v.join.Members(m)
		if len(members) == 0 {
			members = []*quorum.Member{nil}
		}
		for _, member := range members {
			row := append([]string{m.Name, phase, node}, v.memberCells(member)...)
			rows = append(rows, append(row, entryWord(m.Hook), entryWord(m.Latch), v.waits(m)))
		}
	}
	for k := range v.Ring.Members {
		member := &v.Ring.Members[k]
		host := v.join.Host(member)
		if len(host.Machines) > 0 {
			continue
		}
		node, what := "", ""
		if len(host.Nodes) == 1 {
			node = nodeCell(host.Nodes[0])
		}
		switch {
		case host.Departed != nil:
			what = "its Machine " + host.Departed.Machine + " is gone"
		case host.Bootstrap:
			what = "the installer's bootstrap member"
		case !host.Known():
			what = "its host is not known"
		}
		rows = append(rows, append(append([]string{"", "", node}, v.memberCells(member)...), "", "", what))
	}
	return rows
}

// memberCells are name, ID, role and health of a member, empty for nil.
func (v *view) memberCells(m *quorum.Member) []string {
	if m == nil {
		if !v.Ring.Known {
			return []string{"?", "?", "?", "?"}
		}
		return []string{"", "", "", ""}
	}
	name := m.Name
	if !m.Started() {
		name = "(not started)"
	}
	return []string{name, m.ID.Hex(), v.role(m), v.healthOf(m)}
}

// healthOf is a member's health, and for how long it has been unhealthy where that is known. The notes say why.
func (v *view) healthOf(m *quorum.Member) string {
	switch {
	case m.Healthy:
		return "healthy"
	case m.Since.IsZero() || v.Now.Sub(m.Since) < time.Second: // a plugin that asks etcd itself has just seen it for the first time
		return "unhealthy"
	}
	return "unhealthy for " + v.age(m.Since)
}

func nodeCell(n *quorum.Node) string {
	var marks []string
	if !n.Ready {
		marks = append(marks, "not ready")
	}
	if n.Cordoned {
		marks = append(marks, "cordoned")
	}
	if marks == nil {
		return n.Name
	}
	return n.Name + " (" + strings.Join(marks, ", ") + ")"
}

func entryWord(e quorum.Entry) string {
	switch e {
	case quorum.EntryOurs:
		return "on"
	case quorum.EntryForeign:
		return "foreign"
	case quorum.EntryAbsent:
	}
	return "off"
}
