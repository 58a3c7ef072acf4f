package sandbox

import (
	"context"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/process"
)

// SetOperatorIdentity is the platform's control plane machine set operator.
const SetOperatorIdentity Identity = "system:serviceaccount:openshift-machine-api:control-plane-machine-set-operator"

// The version that the operator believes it is of, and what a cluster of that version has.
const (
	setOperatorVersion = "0.0.1-snapshot"
	setOperatorObjects = `apiVersion: config.openshift.io/v1
kind: ClusterVersion
metadata: {name: version}
spec: {clusterID: 11111111-1111-4111-8111-111111111111}
status:
  desired: {version: ` + setOperatorVersion + `, image: x}
  observedGeneration: 1
  versionHash: x
  availableUpdates: []
---
apiVersion: config.openshift.io/v1
kind: FeatureGate
metadata: {name: cluster}
spec: {}
status:
  featureGates:
  - version: ` + setOperatorVersion + `
    enabled: []
    disabled: [{name: CPMSMachineNamePrefix}, {name: MachineAPIMigration}]
---
apiVersion: config.openshift.io/v1
kind: ClusterOperator
metadata: {name: control-plane-machine-set}
spec: {}
`
)

// startSetOperator starts the platform's control plane machine set operator, with what it looks for in a cluster.
func (s *Sandbox) startSetOperator(ctx context.Context) error {
	objects, err := parse("the set operator's cluster", []byte(setOperatorObjects))
	if err != nil {
		return err
	}
	if err := s.apply(ctx, objects...); err != nil {
		return err
	}
	return s.SetOperator.Start()
}

func (s *Sandbox) setOperatorSpec() (process.Spec, error) {
	const name = "control-plane-machine-set-operator"
	path, err := assets.Path(name)
	if err != nil {
		return process.Spec{}, err
	}
	return process.Spec{
		Name: name, Path: path, Log: s.logFile(name),
		Env: []string{"RELEASE_VERSION=" + setOperatorVersion, "COMPONENT_NAMESPACE=" + MachineNamespace},
		Args: []string{
			"--kubeconfig=" + s.Kubeconfig(SetOperatorIdentity), "--namespace=" + MachineNamespace, "--v=2", "--leader-elect=false",
			"--webhook-port=0", "--metrics-bind-address=0", "--health-probe-bind-address=0",
		},
	}, nil
}
