package scenario_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestFromBootstrap begins as an installation does: etcd is the installer's bootstrap member alone, and there is no control-plane Machine. A set of
// three makes the Machines. The bootstrap member votes until three others do and the installation is over.
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
	done := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap"}, Data: map[string]string{"status": "complete"}}
	must(t, c.as(sandbox.Admin).Create(t.Context(), done))
	c.becomes(t, quorum.BootstrapName, "")
	c.setSettles(t, 3, sandbox.InstanceType)
	must(t, c.Holdfast.Restart())
	c.recovers(t)
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
