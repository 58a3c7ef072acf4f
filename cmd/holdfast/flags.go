package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/cli"
)

// defaultSelf is the user that Holdfast runs as where deploy/base installs it.
const defaultSelf = "system:serviceaccount:holdfast-system:holdfast"

// policy is what the webhooks and their registrations must agree on.
type policy struct {
	namespace   string
	enforcement admission.Enforcement
	identities  admission.Identities
}

// enforces says why the rules must be enforced and are not, nil if that is in order.
func (p *policy) enforces(full bool) error {
	return wrong(full && p.enforcement != admission.Enforce,
		"--enforcement=%s is for guard mode: in full mode Holdfast moves etcd's members, and decides by what only its rules protect", p.enforcement)
}

func (p *policy) bind(f *pflag.FlagSet) {
	d := admission.DefaultIdentities(defaultSelf)
	f.StringVar(&p.namespace, "machine-namespace", "openshift-machine-api", "namespace of the Machines")
	f.TextVar(&p.enforcement, "enforcement", admission.Enforce, "enforce: refuse and repair what the rules deny and repair; in guard mode also warn: let it pass, record it and warn of it; audit: let it pass and record it. The reconciler then only reports")
	f.StringSliceVar(&p.identities.Custodians, "custodians", d.Custodians, "users that may put etcd's hook on Machines and release it, Holdfast's own among them")
	f.StringSliceVar(&p.identities.Automation, "automation-users", nil, "users (* stands for any characters) and groups to treat as automation, besides system:*; they cannot use the escape hatch")
	f.StringSliceVar(&p.identities.EscapeHatch, "escape-hatch-users", d.EscapeHatch, "users (* stands for any characters) and groups to treat as people although they look like automation")
	f.StringSliceVar(&p.identities.MachineAPI, "status-writers", d.MachineAPI, "users that may write where a Machine runs (its status, its provider ID, and annotations that name its instance); everyone else is refused")
	f.StringSliceVar(&p.identities.CRD, "crd-custodians", d.CRD, "users that may change the Machine CRD while Machines carry etcd's hook: the cluster's version operator")
	for name := range p.lists() {
		flag := f.Lookup(name)
		flag.Value = oneLine{flag.Value}
	}
}

// oneLine is the value of a flag that is a list. Lists are read as CSV, and of that the first line alone: what
// follows would be dropped without a word.
type oneLine struct{ pflag.Value }

// Set is pflag.Value's.
func (v oneLine) Set(text string) error {
	if strings.ContainsAny(text, "\r\n") {
		return errors.New("it must be one line, with commas between the names")
	}
	return v.Value.Set(text)
}

func (p *policy) check() error {
	if problems := validation.IsDNS1123Label(p.namespace); len(problems) > 0 {
		return cmp.Or(
			wrong(p.namespace == "", "--machine-namespace is empty"),
			cli.Usage("--machine-namespace %q is not the name of a namespace: %s", p.namespace, problems[0]),
		)
	}
	patterns := map[string]bool{"automation-users": true, "escape-hatch-users": true} // these may be empty, too
	for flag, names := range p.lists() {
		for _, n := range *names {
			if err := cmp.Or(
				wrong(n == "" || strings.TrimSpace(n) != n, "--%s holds an empty name or one with spaces around it: %q", flag, *names),
				wrong(!patterns[flag] && strings.Contains(n, "*"), "--%s %q: these users are named in full, without *", flag, n),
			); err != nil {
				return err
			}
		}
		if len(*names) == 0 && !patterns[flag] {
			return cli.Usage("--%s is empty; without the flag the defaults apply", flag)
		}
	}
	return p.checkReach()
}

// lists are the lists of users, by their flags.
func (p *policy) lists() map[string]*[]string {
	i := &p.identities
	return map[string]*[]string{
		"custodians": &i.Custodians, "automation-users": &i.Automation, "escape-hatch-users": &i.EscapeHatch, "status-writers": &i.MachineAPI, "crd-custodians": &i.CRD,
	}
}

// checkReach refuses entries that would turn everybody into automation, unless persons are named, or every service account into a person.
func (p *policy) checkReach() error {
	somebody := admission.User{Name: "somebody", Groups: []string{"system:authenticated"}}
	account := admission.User{Name: "system:serviceaccount:any:any", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	named := slices.ContainsFunc(p.identities.EscapeHatch, func(e string) bool { return !slices.Contains(admission.DefaultIdentities("").EscapeHatch, e) })
	for _, entry := range p.identities.Automation {
		if ids := (admission.Identities{Automation: []string{entry}}); ids.Classify(somebody) != admission.ClassPerson && !named {
			return cli.Usage("--automation-users %q matches everybody: name those who may release a Machine by hand in --escape-hatch-users", entry)
		}
	}
	for _, entry := range p.identities.EscapeHatch {
		if ids := (admission.Identities{EscapeHatch: []string{entry}}); ids.Classify(account) != admission.ClassAutomation {
			return cli.Usage("--escape-hatch-users %q matches every service account: any tool could release a Machine", entry)
		}
	}
	return nil
}
