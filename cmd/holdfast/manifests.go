package main

import (
	"cmp"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

func manifestsCommand() *cobra.Command {
	var (
		p policy
		r registrationFlags
		o registrations.Options
	)
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print the webhooks' registrations and the policies for kubectl apply",
		Long: `Print the webhooks' registrations, and the policies that the API server evaluates itself, so that the
gate holds while no Holdfast answers. They hold the same lists of identities as the manager, so give
both the same --machine-namespace, --enforcement, --custodians, --automation-users and --escape-hatch-users. A manager
with --webhook-service or --webhook-url keeps them itself, and needs this command for nothing.`,
		Example: `  holdfast manifests --webhook-url https://10.0.0.9:9443 --webhook-ca-file ca.crt | kubectl apply -f -
  holdfast manifests --webhook-service holdfast-system/holdfast-webhook \
    --registration-annotations service.beta.openshift.io/inject-cabundle=true | kubectl apply -f -`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(p.check(), p.enforces(o.EtcdNamespace != "")); err != nil {
				return err
			}
			o.MachineNamespace, o.Identities, o.Enforcement, o.QuorumGuard = p.namespace, p.identities, p.enforcement, o.EtcdNamespace != ""
			if err := r.place(&o); err != nil {
				return err
			}
			switch {
			case len(r.annotations) > 0 && r.caFile != "":
				return cli.Usage("--webhook-ca-file and --registration-annotations are both set; the registrations' caBundle is either in the file or another operator's to fill in")
			case len(r.annotations) == 0:
				if err := cli.Readable("webhook-ca-file", r.caFile); err != nil {
					return err
				}
				bundle, err := os.ReadFile(r.caFile)
				if err != nil {
					return cli.Usage("--webhook-ca-file: %v", err)
				}
				o.CABundle = bundle
			}
			mutating, validating := registrations.Registrations(o)
			mutating.Annotations, validating.Annotations = r.annotations, r.annotations
			return registrations.WriteYAML(cmd.OutOrStdout(), append([]any{mutating, validating}, registrations.Policies(o)...)...)
		},
	}
	f := cmd.Flags()
	p.bind(f)
	r.bind(f)
	f.StringVar(&o.HoldfastNamespace, "leader-elect-namespace", "holdfast-system", "namespace in which the manager publishes the ring")
	f.StringVar(&o.EtcdNamespace, "etcd-namespace", "", "for full mode: namespace in which the manager publishes etcd's membership and keeps the quorum guard")
	return cmd
}
