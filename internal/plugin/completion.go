package plugin

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// completionTimeout is how long somebody who pressed TAB waits for the cluster.
const completionTimeout = 3 * time.Second

// names completes the names of control-plane Machines, those that suit alone. Nothing is said of what goes
// wrong: somebody is typing.
func (c *clusterFlags) names(t terminal, suits func(*quorum.Machine) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		config, err := c.config()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		config.WarningHandler = &warnings{out: io.Discard}
		api, err := t.dial.api(config)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		namespace := defaultNamespace
		if c.overrides.Context.Namespace != "" {
			namespace = c.overrides.Context.Namespace
		}
		machines, err := (&observe.Observer{API: api, Namespace: namespace}).Machines(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offered(machines, toComplete, suits), cobra.ShellCompDirectiveNoFileComp
	}
}

// offered are the names that begin as typed, each with what a person tells them by.
func offered(machines []quorum.Machine, typed string, suits func(*quorum.Machine) bool) []string {
	var out []string
	for i := range machines {
		m := &machines[i]
		if !strings.HasPrefix(m.Name, typed) || !suits(m) {
			continue
		}
		what := m.Phase
		if m.Deleting() {
			what = "Deleting"
		}
		out = append(out, plain(m.Name)+"\t"+plain(what))
	}
	return out
}

func anyMachine(*quorum.Machine) bool { return true }

// among completes a flag's value.
func among(cmd *cobra.Command, flag string, known ...string) {
	// It fails for a flag that does not exist, which a test of each flag would find.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
}
