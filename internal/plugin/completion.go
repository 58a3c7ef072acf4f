package plugin

import "github.com/spf13/cobra"

// among completes a flag's value.
func among(cmd *cobra.Command, flag string, known ...string) {
	// It fails for a flag that does not exist, which a test of each flag would find.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
}
