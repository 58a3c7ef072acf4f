package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestRemediation: an annotation has bare metal's actuator power a control-plane host off, whatever hook its Machine has. Automation may not ask for that, a
// person for one host at a time, and after that all are back.
func TestRemediation(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	for _, mode := range []string{"guard", "full"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := start(t, sandbox.Options{Replicas: 3, Mode: mode})
			c.watch(t, 2)
			if mode == "guard" {
				for _, name := range []string{"master-0", "master-1", "master-2"} {
					must(t, c.hook(t.Context(), name))
				}
			}
			c.atRest(t)
			restart := func(who sandbox.Identity, name string) error {
				m := &machinev1beta1.Machine{}
				m.Namespace, m.Name = sandbox.MachineNamespace, name
				patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:""}}}`, quorum.RemediationAnnotation)
				return c.as(who).Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(patch)))
			}
			refused := func(err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "("+string(quorum.RuleKeepHost)+")") {
					t.Fatalf("a host may be powered off: %v", err)
				}
			}
			refused(restart(sandbox.GitOps, "master-0"))
			first := ""
			eventually(t, slowly, "the restart of one host, of three asked for at one instant", func(context.Context) error {
				var answers [3]error
				var asked sync.WaitGroup
				for i := range answers {
					asked.Go(func() { answers[i] = restart(sandbox.Alice, fmt.Sprintf("master-%d", i)) })
				}
				asked.Wait()
				for i, err := range answers {
					switch {
					case err != nil:
						refused(err)
					case first != "":
						t.Fatalf("%s and master-%d may be powered off", first, i)
					default:
						first = fmt.Sprintf("master-%d", i)
					}
				}
				if first == "" {
					return errors.Join(answers[:]...) // the ledger was pruned at that instant
				}
				return nil
			})
			eventually(t, slowly, "the host without power", func(context.Context) error {
				if h, ok := c.Host(first); !ok || h.Etcd != nil {
					return errors.New("its etcd runs")
				}
				return nil
			})
			for i := range 3 {
				if name := fmt.Sprintf("master-%d", i); name != first {
					refused(restart(sandbox.Alice, name))
				}
			}
			eventually(t, slowly, "the host back", func(ctx context.Context) error {
				m, err := c.machine(ctx, first)
				if err != nil {
					return err
				}
				if _, asked := m.Annotations[quorum.RemediationAnnotation]; asked {
					return errors.New("it is being restarted")
				}
				return nil
			})
			c.nodeReady(t, first)
			c.recovers(t)
		})
	}
}
