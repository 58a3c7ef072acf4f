package scenario_test

import (
	"bytes"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// traced writes what etcd and the API server show from now to the end of the test, a line for each change, and holds it against the
// model (test/model): each step is one that the model allows. The control plane is at rest now. look writes what they show at once: a test
// that makes two changes in a row looks between them, since the next look of its own may be too late.
func (c *cluster) traced(t *testing.T, mode string) (look func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var (
		mu    sync.Mutex
		trace bytes.Buffer
		last  string
		work  sync.WaitGroup
	)
	named := map[string]string{} // members by peer URL: one that has not started says no name
	look = func() {
		mu.Lock()
		defer mu.Unlock()
		if now, ok := c.moment(ctx, named); ok && now != last {
			trace.WriteString(now + "\n")
			last = now
		}
	}
	look()
	work.Go(func() {
		tick := time.NewTicker(glimpse)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			look()
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
		if t.Failed() {
			return
		}
		model, err := assets.Path("model")
		must(t, err)
		file := filepath.Join(t.TempDir(), "trace")
		must(t, os.WriteFile(file, trace.Bytes(), 0o600))
		out, err := exec.CommandContext(context.WithoutCancel(ctx), model, "-mode", mode, "-trace", file).CombinedOutput() //nolint:gosec // our own
		if err != nil {
			t.Errorf("%v\n%s%s", err, out, trace.Bytes())
		}
		t.Logf("%s", out)
	})
	return look
}

// moment is what each Machine and member is at one time: ok is false if a member changed while the Machines were read.
func (c *cluster) moment(ctx context.Context, named map[string]string) (text string, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	for _, host := range c.Hosts() {
		named[host.PeerURL] = host.Name
	}
	members := func() (roles map[string]string) {
		list, err := c.etcd.MemberList(ctx)
		if err != nil {
			return nil
		}
		roles = map[string]string{}
		for _, m := range list.Members {
			roles[named[m.GetPeerURLs()[0]]] = map[bool]string{true: " learner", false: " voter"}[m.GetIsLearner()]
		}
		return roles
	}
	before := members()
	var machines machinev1beta1.MachineList
	err := c.as(sandbox.Admin).List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace))
	if after := members(); err != nil || before == nil || !maps.Equal(before, after) {
		return "", false
	}
	all := map[string]string{}
	for _, m := range machines.Items {
		is := " live"
		if m.DeletionTimestamp != nil {
			is = " deleting"
		}
		has := func(hooks []machinev1beta1.LifecycleHook, name, word string) {
			if slices.ContainsFunc(hooks, func(h machinev1beta1.LifecycleHook) bool { return h.Name == name }) {
				is += word
			}
		}
		has(m.Spec.LifecycleHooks.PreDrain, quorum.HookName, " hook")
		has(m.Spec.LifecycleHooks.PreTerminate, quorum.LatchName, " latch")
		all[m.Name] = is
	}
	for name, role := range before {
		all[name] += role
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, name+":"+all[name])
	}
	return strings.Join(parts, "; "), true
}
