package scenario_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestScale changes the desired count, from one to five by the install-config, and back by the flag: one vote at a time, and none goes before its Machine is deleted. Two
// learners at a time get their data.
func TestScale(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	const two = "--max-learners=2"
	c := start(t, sandbox.Options{Replicas: 1, HoldfastArgs: []string{two}, EtcdArgs: []string{two}})
	history := c.watch(t, 1)
	c.judgeFiles(t)
	c.atRest(t)

	t.Run("1 to 3, with the installer's bootstrap member", func(t *testing.T) {
		c.want(t, 3)
		must(t, c.StartBootstrap(t.Context()))
		c.becomes(t, quorum.BootstrapName, "voter")
		must(t, c.replacement(t.Context(), "master-0", "second"))
		must(t, c.replacement(t.Context(), "master-0", "third"))
		c.becomes(t, "second", "voter")
		c.becomes(t, "third", "voter")
		c.comesToSay(t, []string{"BootstrapMemberWaits", "ConfigMap kube-system/bootstrap does not exist"}, "status")
		done := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap"}, Data: map[string]string{"status": "complete"}}
		must(t, c.as(sandbox.Admin).Create(t.Context(), done))
		c.becomes(t, quorum.BootstrapName, "") // three others vote, and the installation is over
		c.atRest(t)
	})
	twoLearners := func(t *testing.T) {
		t.Helper()
		if most := history.mostLearners(); most != 2 {
			t.Errorf("%d learners at most were seen at a time, and two members were new", most)
		}
	}
	t.Run("3 to 5", func(t *testing.T) {
		c.want(t, 5)
		history.atLeast(3)
		history.mostLearners()
		must(t, c.replacement(t.Context(), "second", "fourth"))
		must(t, c.replacement(t.Context(), "second", "fifth"))
		c.atRest(t)
		twoLearners(t)
	})
	t.Run("two of five are replaced at a time", func(t *testing.T) {
		history.atLeast(5)
		for old, next := range map[string]string{"master-0": "sixth", "third": "seventh"} {
			must(t, c.replacement(t.Context(), "second", next))
			must(t, c.remove(t.Context(), old))
		}
		c.gone(t, slowly, "master-0")
		c.gone(t, slowly, "third")
		c.atRest(t)
		twoLearners(t)
	})
	fewer := func(replicas int) { // only the flag lowers the number; what people write into the install-config does not
		t.Helper()
		c.SetHoldfastArgs(two, fmt.Sprintf("--desired-replicas=%d", replicas))
		c.desired.Store(int64(replicas))
		for _, holdfast := range c.Holdfasts() {
			must(t, holdfast.Restart())
		}
		must(t, c.WaitHoldfast(t.Context()))
	}
	t.Run("5 to 3", func(t *testing.T) {
		c.want(t, 3)
		c.comesToSay(t, []string{"5 wanted (as it was installed", "asks for 3"}, "status")
		history.atLeast(5)
		c.want(t, 5)
		fewer(3)
		history.atLeast(3)
		must(t, c.remove(t.Context(), "sixth"))
		must(t, c.remove(t.Context(), "seventh"))
		c.gone(t, slowly, "sixth")
		c.gone(t, slowly, "seventh")
		c.atRest(t)
	})
	t.Run("3 to 1", func(t *testing.T) {
		must(t, c.remove(t.Context(), "second")) // it is held while 3 are wanted
		history.atLeast(1)
		fewer(1)
		c.gone(t, slowly, "second")
		must(t, c.remove(t.Context(), "fourth"))
		c.gone(t, slowly, "fourth")
		c.atRest(t)
	})
}

// want writes a number of control-plane replicas into the install-config. If it is greater than all before, so many voters are wanted.
func (c *cluster) want(t *testing.T, replicas int) {
	t.Helper()
	var cm corev1.ConfigMap
	key := client.ObjectKey{Namespace: "kube-system", Name: "cluster-config-v1"}
	must(t, c.as(sandbox.Admin).Get(t.Context(), key, &cm))
	cm.Data = map[string]string{"install-config": fmt.Sprintf("controlPlane:\n  name: master\n  replicas: %d\n", replicas)}
	c.desired.Store(max(c.desired.Load(), int64(replicas)))
	must(t, c.as(sandbox.Admin).Update(t.Context(), &cm))
}
