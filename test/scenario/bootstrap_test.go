package scenario_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestFromBootstrap begins as an installation does: etcd is the installer's bootstrap member alone, and there is no control-plane Machine. A set of
// three makes the Machines. The bootstrap member votes until three others do, the installation is over, and API servers know of the three. So does
// the voter of a Machine that is replaced later, until they know of the new one.
func TestFromBootstrap(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, FromBootstrap: true})
	history := c.watch(t, 1)
	c.judgeFiles(t)
	c.comesToSay(t, []string{"1 of 1 voters healthy", "the installer's bootstrap member", "there is no control-plane Machine"}, "status")

	must(t, c.as(sandbox.Alice).Create(t.Context(), controlPlaneSet(t)))
	for voters := 2; voters <= 4; voters++ {
		eventually(t, slowly, fmt.Sprintf("%d voters", voters), func(ctx context.Context) error { return c.votersAre(ctx, voters) })
		history.atLeast(voters) // none goes while the others come
	}
	c.comesToSay(t, []string{"BootstrapMemberWaits", "ConfigMap kube-system/bootstrap does not exist"}, "status")

	history.atLeast(3)
	knows := c.platformAPIServers(t)
	knows("https://192.0.2.1:2379")
	done := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap"}, Data: map[string]string{"status": "complete"}}
	must(t, c.as(sandbox.Admin).Create(t.Context(), done))
	c.comesToSay(t, []string{"BootstrapMemberWaits", "the API servers do not know"}, "status")
	knows(c.clientURLs(t)...)
	c.becomes(t, quorum.BootstrapName, "")
	c.setSettles(t, 3, sandbox.InstanceType)

	old := c.voters(t)[0]
	knows(c.clientURLs(t)...)
	must(t, c.remove(t.Context(), old))
	c.comesToSay(t, []string{"4 of 4 voters healthy", old, "it is removed once the API servers can do without it: the API servers do not know"}, "status")
	knows(c.clientURLs(t)...)
	c.gone(t, slowly, old)
	c.setSettles(t, 3, sandbox.InstanceType)
	must(t, c.Holdfast.Restart())
	c.recovers(t)
}

// platformAPIServers installs the object by which OpenShift configures its API servers. What it returns has all of them know these URLs of etcd.
func (c *cluster) platformAPIServers(t *testing.T) (know func(urls ...string)) {
	t.Helper()
	crds, err := assets.CRDs(assets.KubeAPIServerCRD)
	must(t, err)
	_, err = envtest.InstallCRDs(c.Config(sandbox.Admin), envtest.CRDInstallOptions{CRDs: crds, MaxTime: slowly})
	must(t, err)
	admin, servers := c.as(sandbox.Admin), &unstructured.Unstructured{}
	servers.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.openshift.io", Version: "v1", Kind: "KubeAPIServer"})
	servers.SetName("cluster")
	must(t, unstructured.SetNestedField(servers.Object, "Managed", "spec", "managementState"))
	must(t, admin.Create(t.Context(), servers))
	for _, node := range []map[string]any{{"nodeName": "any"}, {"nodeName": "any", "currentRevision": int64(1)}} { // a new one has no revision
		must(t, unstructured.SetNestedField(servers.Object, map[string]any{"latestAvailableRevision": int64(1), "nodeStatuses": []any{node}}, "status"))
		must(t, admin.Status().Update(t.Context(), servers))
	}
	return func(urls ...string) {
		t.Helper()
		must(t, unstructured.SetNestedStringSlice(servers.Object, urls, "spec", "observedConfig", "apiServerArguments", "etcd-servers"))
		must(t, admin.Update(t.Context(), servers))
	}
}

// clientURLs are those of etcd's voters.
func (c *cluster) clientURLs(t *testing.T) (urls []string) {
	t.Helper()
	eventually(t, quickly, "etcd's members", func(ctx context.Context) error {
		members, err := c.members(ctx)
		urls = nil
		for _, m := range members {
			if !m.GetIsLearner() {
				urls = append(urls, m.GetClientURLs()...)
			}
		}
		return err
	})
	return urls
}

// votersAre says whether so many members vote, the bootstrap member among them.
func (c *cluster) votersAre(ctx context.Context, n int) error {
	members, err := c.members(ctx)
	if err != nil {
		return err
	}
	voters, bootstrap := 0, false
	for _, m := range members {
		if !m.GetIsLearner() {
			voters++
			bootstrap = bootstrap || m.GetName() == quorum.BootstrapName
		}
	}
	if voters < n || !bootstrap {
		return fmt.Errorf("%d voters, the bootstrap member among them: %t", voters, bootstrap)
	}
	return nil
}
