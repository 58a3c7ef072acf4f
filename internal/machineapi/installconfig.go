package machineapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"sigs.k8s.io/yaml"
)

// DesiredReplicas is how many etcd voters an install-config asks for: controlPlane.replicas and
// arbiter.replicas, from 1 to 198. It takes the YAML of key install-config of ConfigMap
// kube-system/cluster-config-v1. Its errors name the value that is wrong and nothing else of the
// document, which may hold secrets.
func DesiredReplicas(installConfig string) (int, error) {
	type pool struct {
		Replicas json.RawMessage `json:"replicas"`
	}
	var config struct {
		ControlPlane *pool `json:"controlPlane"`
		Arbiter      *pool `json:"arbiter"`
	}
	if err := yaml.Unmarshal([]byte(installConfig), &config); err != nil {
		return 0, errors.New("the install-config is not YAML with the maps controlPlane and arbiter; give --desired-replicas instead")
	}
	if config.ControlPlane == nil || absent(config.ControlPlane.Replicas) {
		return 0, errors.New("the install-config has no controlPlane.replicas; give --desired-replicas instead")
	}
	voters, err := replicas("controlPlane", config.ControlPlane.Replicas)
	if err != nil {
		return 0, err
	}
	sum := "controlPlane.replicas " + strconv.Itoa(voters)
	if config.Arbiter != nil && !absent(config.Arbiter.Replicas) {
		arbiters, err := replicas("arbiter", config.Arbiter.Replicas)
		if err != nil {
			return 0, err
		}
		voters += arbiters
		sum += " and arbiter.replicas " + strconv.Itoa(arbiters)
	}
	if voters == 0 {
		return 0, fmt.Errorf("the install-config asks for no etcd voters (%s)", sum)
	}
	return voters, nil
}

func absent(value json.RawMessage) bool { return len(value) == 0 || string(value) == "null" }

// maxReplicas is far beyond any etcd, and far from where a sum overflows.
const maxReplicas = 99

func replicas(pool string, value json.RawMessage) (int, error) {
	n, err := strconv.Atoi(string(value))
	if err != nil || n < 0 || n > maxReplicas {
		return 0, fmt.Errorf("%s.replicas of the install-config is %.40s, which is no number of replicas from 0 to %d", pool, value, maxReplicas)
	}
	return n, nil
}
