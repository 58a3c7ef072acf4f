package scenario_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestAddress has the leader's host come back at another address, and types what Holdfast says. The member goes on with its ID and its data, and
// its Machine keeps the hook, which the history sees.
func TestAddress(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 2)
	c.atRest(t)
	name := c.leader(t)
	was, _ := c.Host(name)
	id := c.memberID(t, name)
	c.off(t, name)
	must(t, c.Readdress(name))
	must(t, c.Power(name, true))
	eventually(t, slowly, "Holdfast to say what to type", func(context.Context) error {
		out, err := c.shell(t, "kubectl holdfast status")
		if says := "etcdctl member update " + id; err == nil && !strings.Contains(out, says) {
			err = fmt.Errorf("no %q in %s", says, out)
		}
		return err
	})
	is, _ := c.Host(name)
	_, err := c.shell(t, fmt.Sprintf("etcdctl member update %s --peer-urls=%s", id, is.PeerURL))
	must(t, err)
	c.recovers(t)
	if now := c.memberID(t, name); now != id {
		t.Errorf("the member on %s is %s, and was %s", name, now, id)
	}
	if c.putAside(t, was) != 0 {
		t.Errorf("the data of %s were put aside", name)
	}
	c.sameData(t)
}
