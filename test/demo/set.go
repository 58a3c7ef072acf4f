package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

const (
	largest   = "m5.4xlarge"
	setWithin = 2 * time.Minute
)

// setManifest declares the control plane's Machines as they are.
const setManifest = `apiVersion: machine.openshift.io/v1
kind: ControlPlaneMachineSet
metadata: {name: cluster, namespace: openshift-machine-api}
spec:
  state: Active
  replicas: 3
  strategy: {type: OnDelete}
  selector:
    matchLabels: &labels
      machine.openshift.io/cluster-api-cluster: sandbox
      machine.openshift.io/cluster-api-machine-role: master
      machine.openshift.io/cluster-api-machine-type: master
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: *labels}
      spec: {providerSpec: {value: {apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: ` + larger + `}}}
`

// set is chapter 6.
func (d *demo) set(ctx context.Context) error {
	d.chapter(6, "The control plane's Machines as one set: one edit, and all three are replaced",
		"A ControlPlaneMachineSet takes the Machines over. With strategy OnDelete it replaces nothing by itself.")
	file := filepath.Join(d.files, "set.yaml")
	if err := os.WriteFile(file, []byte(setManifest), 0o600); err != nil {
		return err
	}
	if _, err := d.run(ctx, sandbox.Alice, "create", "-f", file); err != nil {
		return fmt.Errorf("create the set: %w", err)
	}
	before, err := d.follow(ctx, time.Minute, "the set to adopt the Machines", time.Now(), func(s sight) bool {
		for i := range s.machines {
			if c := s.machines[i].Controller(); c == nil || c.Kind != "ControlPlaneMachineSet" {
				return false
			}
		}
		return len(s.machines) == 3
	})
	if err != nil {
		return err
	}
	d.say("The set controls all three Machines.")
	d.line("")
	from := time.Now()
	if _, err := d.run(ctx, sandbox.Alice, "-n", sandbox.MachineNamespace, "patch", "controlplanemachineset", "cluster", "--type=merge",
		"-p", `{"spec":{"strategy":{"type":"RollingUpdate"},"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":"`+largest+`"}}}}}}}`); err != nil {
		return fmt.Errorf("change the set's template: %w", err)
	}
	most, fewest := 0, 3
	s, err := d.follow(ctx, setWithin, "three replacements", from, func(s sight) bool {
		most, fewest = max(most, s.voters()), min(fewest, s.voters())
		for i := range s.machines {
			if s.types[s.machines[i].Name] != largest || s.machines[i].Hook != quorum.EntryOurs {
				return false
			}
		}
		return len(s.machines) == 3 && s.voters() == 3 && len(s.members) == 3
	})
	if err != nil {
		return err
	}
	d.event(from, "All three Machines are %s", largest)
	d.table(s)
	for _, m := range before.machines {
		if s.machine(m.Name) != nil {
			return fmt.Errorf("Machine %s is still there", m.Name)
		}
	}
	if most > 4 || fewest < 3 {
		return fmt.Errorf("etcd had %d to %d voters, not 3 or 4", fewest, most)
	}
	return nil
}
