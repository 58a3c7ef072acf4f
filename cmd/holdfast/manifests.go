package main

import (
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/serving"
)

func manifestsCommand() *cobra.Command {
	var (
		p      policy
		at, ca string
	)
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print the webhooks' registrations and the policies for kubectl apply",
		Long: `Print the webhooks' registrations, and the policies that the API server evaluates itself, so that the
gate holds while no Holdfast answers. They hold the same lists of identities as the manager, so give
both the same --machine-namespace, --custodians, --automation-users and --escape-hatch-users.`,
		Example: "  holdfast manifests --webhook-url https://10.0.0.9:9443 --webhook-ca-file ca.crt | kubectl apply -f -",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.check(); err != nil {
				return err
			}
			if u, err := url.Parse(at); err != nil || u.Scheme != "https" || u.Host == "" {
				return usage("--webhook-url is %q; it is an https URL that the API server reaches, such as https://10.0.0.9:9443", at)
			}
			if err := readable("webhook-ca-file", ca); err != nil {
				return err
			}
			bundle, err := os.ReadFile(ca)
			if err != nil {
				return usage("--webhook-ca-file: %v", err)
			}
			o := serving.Options{
				URL: at, CABundle: bundle, MachineNamespace: p.namespace, Identities: p.identities,
			}
			mutating, validating := serving.Registrations(o)
			return serving.WriteYAML(cmd.OutOrStdout(), append([]any{mutating, validating}, serving.Policies(o)...)...)
		},
	}
	f := cmd.Flags()
	p.bind(f)
	f.StringVar(&at, "webhook-url", "", "URL at which the API server reaches the webhooks")
	f.StringVar(&ca, "webhook-ca-file", "", "file with the CA of the webhooks' certificate")
	return cmd
}
