package custodian_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestAPIServersBeside: in guard mode beside the stand-in, with an API server on each host that knows that host's member alone, all hosts are
// drained and restarted in turn, as the machine config operator does, while one is replaced.
func TestAPIServersBeside(t *testing.T) {
	tier.Long(t)
	c := start(t, sandbox.Options{Mode: "guard", APIServers: true})
	right := c.custodian(t, dial(t, c.Sandbox), custodian.Options{})
	goOn(t, right, "the operator's hook, and latch and evidence with it, on every Machine", c.restless)
	c.watch(t, desired)
	running, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = right.Run(running, glimpse) }() // what it could not do, it does later

	asks := func(what string, ask func(context.Context) error) {
		t.Helper()
		eventually(t, what, func(ctx context.Context) error { // a connection ends with the API server that it leads to
			if err := ask(ctx); !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
				return err
			}
			return nil
		})
	}
	asks("Machine master-0 deleted", func(ctx context.Context) error { return c.alice.Delete(ctx, named("master-0")) })
	c.replace(t, "master-1", "next")
	for _, node := range []string{"master-1", "master-2", "next"} {
		asks("Node "+node+" drained", func(ctx context.Context) error { return c.kubectl(ctx, "drain", node, "--force", "--timeout=5s") })
		must(t, c.Power(node, false))
		eventually(t, "no API server on "+node, func(context.Context) error {
			if host, _ := c.Host(node); host.Etcd != nil || host.APIServer != nil {
				return errors.New("it runs")
			}
			return nil
		})
		must(t, c.Power(node, true))
		eventually(t, "an API server on "+node, func(context.Context) error {
			if host, _ := c.Host(node); !host.Serves {
				return errors.New("it does not serve")
			}
			return nil
		})
		asks("Node "+node+" uncordoned", func(ctx context.Context) error { return c.kubectl(ctx, "uncordon", node) })
	}
	eventually(t, "Machine master-0 replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, "master-0"), c.restless(ctx)) })
}

func (c *cluster) kubectl(ctx context.Context, args ...string) error {
	path, err := assets.Path("kubectl")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(sandbox.Alice))
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
}
