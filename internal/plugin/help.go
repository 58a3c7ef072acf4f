package plugin

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A command's help shows its own flags first. Those that all commands have for the cluster follow, in groups with these headings.
const (
	groupAnnotation = "holdfast.dev/group"
	holdfastFlags   = "Flags for what Holdfast tells, where it is down or elsewhere"
	connectionFlags = "Flags of the connection to the API server, as for kubectl"
)

// join adds flags to others, as a group.
func join(all, some *pflag.FlagSet, group string) {
	some.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{groupAnnotation: {group}}
	})
	all.AddFlagSet(some)
}

// helpFlags prints the usage of a command and its subcommands: their own flags first.
func helpFlags(root *cobra.Command) {
	cobra.AddTemplateFunc("flagsOf", func(cmd *cobra.Command, group string) string {
		of := pflag.NewFlagSet("", pflag.ContinueOnError)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if in := f.Annotations[groupAnnotation]; in == nil && group == "" || len(in) == 1 && in[0] == group {
				of.AddFlag(f)
			}
		})
		return of.FlagUsages()
	})
	template := "Usage:\n  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}\n" +
		"{{if .HasExample}}\nExamples:\n{{.Example}}\n{{end}}" +
		"{{if .HasAvailableSubCommands}}\nAvailable commands:\n{{range .Commands}}{{if .IsAvailableCommand}}  {{rpad .Name .NamePadding}} {{.Short}}\n{{end}}{{end}}{{end}}" +
		"\nFlags:\n{{flagsOf . \"\"}}"
	for _, group := range [...]string{holdfastFlags, connectionFlags} {
		template += "{{with flagsOf . \"" + group + "\"}}\n" + group + ":\n{{.}}{{end}}"
	}
	root.SetUsageTemplate(template + "{{if .HasAvailableSubCommands}}\nMore of a command: {{.CommandPath}} COMMAND --help\n{{end}}")
}
