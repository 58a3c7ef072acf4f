package sandbox

import (
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestStaticPod: what the sandbox's hosts cannot show, since they have holdfast where it was built. The container of etcd finds
// holdfast in the volume that an init container copied it into, and makes the check that the init container made.
func TestStaticPod(t *testing.T) {
	pod, err := StaticPod()
	if err != nil {
		t.Fatal(err)
	}
	inits := map[string]*corev1.Container{}
	for i := range pod.Spec.InitContainers {
		inits[pod.Spec.InitContainers[i].Name] = &pod.Spec.InitContainers[i]
	}
	etcd, binary, membership := &pod.Spec.Containers[0], inits["binary"], inits["membership"]
	if binary == nil || membership == nil || len(etcd.Command) != 1 {
		t.Fatalf("init containers %v, etcd's command %q", inits, etcd.Command)
	}
	volume := func(c *corev1.Container, path string) string {
		for _, m := range c.VolumeMounts {
			if m.MountPath == path {
				return m.Name
			}
		}
		return "none at " + path
	}
	copied := binary.Args[len(binary.Args)-1]
	if from, to := volume(etcd, filepath.Dir(etcd.Command[0])), volume(binary, copied); from != to || !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == to && v.EmptyDir != nil
	}) {
		t.Errorf("etcd's container has %s from volume %s; holdfast is copied to %s in volume %s, which is to be a new one for each pod", etcd.Command[0], from, copied, to)
	}
	own := etcd.Args[:slices.Index(etcd.Args, "--")]
	for _, arg := range membership.Args {
		if !slices.Contains(own, arg) {
			t.Errorf("the init container checks with %s, and etcd's container with %q", arg, own)
		}
	}
}
