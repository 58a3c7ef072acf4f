package scenario_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// TestAddress has the leader's host come back at another address. The member goes on with its ID and its data, and its Machine keeps the
// hook, which the history sees.
func TestAddress(t *testing.T) {
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
	eventually(t, slowly, name+" to be listed where it is", func(context.Context) error {
		is, _ := c.Host(name)
		out, err := c.shell(t, "etcdctl member list")
		if err == nil && (is.PeerURL == was.PeerURL || !strings.Contains(out, is.PeerURL)) {
			err = fmt.Errorf("it is at %s, and was at %s: %s", is.PeerURL, was.PeerURL, out)
		}
		return err
	})
	c.recovers(t)
	if now := c.memberID(t, name); now != id {
		t.Errorf("the member on %s is %s, and was %s", name, now, id)
	}
	c.tells(t, name, "PeerURLUpdated")
	if c.putAside(t, was) != 0 {
		t.Errorf("the data of %s were put aside", name)
	}
	c.sameData(t)
}
