package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/hostfiles"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// files judges what Holdfast publishes for the hosts' files by etcd's own rule: a new member starts only if its initial
// cluster and the members of the ring agree. A watch sees each state of the ConfigMap. Each has to fit a list
// that etcd had, and not an older one than the state before.
type files struct {
	c      *cluster
	lists  [][]*etcdserverpb.Member // that etcd had, in order
	fits   int                      // the list that the last state fits
	states int
	sizes  map[int]bool // of the lists that a state fitted
}

// judgeFiles begins to judge, until the test ends.
func (c *cluster) judgeFiles(t *testing.T) {
	t.Helper()
	f := &files{c: c, sizes: map[int]bool{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	var wrong []string
	work.Go(func() { wrong = f.follow(ctx) })
	t.Cleanup(func() {
		cancel()
		work.Wait()
		for _, w := range wrong {
			t.Error(w)
		}
		t.Logf("%d states of the hosts' files, of %d lists of etcd; rings of %v members", f.states, len(f.lists), f.sizes)
		if len(f.sizes) < 2 {
			t.Error("the hosts' files were seen for rings of one size alone")
		}
	})
}

// follow reads etcd's list 20 times a second, and judges each state of the ConfigMap as it comes.
func (f *files) follow(ctx context.Context) (wrong []string) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		watcher, err := f.c.as(sandbox.Admin).(client.WithWatch).Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace(hostenv.Namespace), client.MatchingFields{"metadata.name": hostenv.Name})
		if err != nil {
			continue
		}
		for open := true; open; {
			select {
			case event, ok := <-watcher.ResultChan():
				open = ok
				cm, is := event.Object.(*corev1.ConfigMap)
				if !is {
					continue
				}
				if err := f.judge(ctx, cm.Data); err != nil && ctx.Err() == nil && len(wrong) < 10 {
					wrong = append(wrong, fmt.Sprintf("hosts' files, state %d: %v:\n%v", f.states, err, cm.Data))
				}
			case <-tick.C:
				f.read(ctx)
			}
		}
		watcher.Stop()
	}
	return wrong
}

// read keeps etcd's list, if it is another one.
func (f *files) read(ctx context.Context) bool {
	list, err := f.c.members(ctx)
	if err != nil {
		return false
	}
	same := func(a, b *etcdserverpb.Member) bool {
		return a.GetID() == b.GetID() && slices.Equal(a.GetPeerURLs(), b.GetPeerURLs())
	}
	if n := len(f.lists); n == 0 || !slices.EqualFunc(f.lists[n-1], list, same) {
		f.lists = append(f.lists, list)
	}
	return true
}

// judge finds the list that a state fits.
func (f *files) judge(ctx context.Context, data map[string]string) error {
	f.states++
	for !f.read(ctx) { // what is published was read before
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	var errs []error
	for i := f.fits; i < len(f.lists); i++ {
		err := f.c.startsAll(data, f.lists[i])
		if err == nil {
			f.fits, f.sizes[len(f.lists[i])] = i, true
			return nil
		}
		errs = append(errs, fmt.Errorf("list %d of %d: %w", i, len(f.lists), err))
	}
	return errors.Join(errs...)
}

// startsAll says why not every host whose member is in the list could start a new member with its text.
func (c *cluster) startsAll(data map[string]string, list []*etcdserverpb.Member) error {
	for name, text := range data {
		e, err := hostenv.Parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(e.InitialCluster) == 0 {
			if i := slices.IndexFunc(list, func(m *etcdserverpb.Member) bool { return m.GetName() == name }); i >= 0 {
				return fmt.Errorf("%s has no initial cluster, and etcd lists its member %x", name, list[i].GetID())
			}
			continue
		}
		if err := starts(name, e, list); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// starts is what etcd requires of a new member's start: the own name and peer URL are in the initial cluster, which has as many members
// as the ring ("member count is unequal" otherwise), and each member of the ring at its peer URLs.
func starts(name string, e hostenv.Environment, list []*etcdserverpb.Member) error {
	if e.State != hostenv.StateExisting {
		return fmt.Errorf("the state is %q", e.State)
	}
	own := slices.Sorted(slices.Values(e.InitialCluster[name]))
	self := slices.ContainsFunc(list, func(m *etcdserverpb.Member) bool {
		return slices.Equal(slices.Sorted(slices.Values(m.GetPeerURLs())), own) && (m.GetName() == "" || m.GetName() == name)
	})
	if !self {
		return fmt.Errorf("etcd lists no member %s at %q", name, own)
	}
	if len(e.InitialCluster) != len(list) {
		return fmt.Errorf("member count is unequal: %s, and etcd lists %d", e.InitialCluster, len(list))
	}
	for _, m := range list {
		found := false
		for _, urls := range e.InitialCluster {
			found = found || slices.Equal(slices.Sorted(slices.Values(urls)), slices.Sorted(slices.Values(m.GetPeerURLs())))
		}
		if !found {
			return fmt.Errorf("no match found for existing member %x at %q in %s", m.GetID(), m.GetPeerURLs(), e.InitialCluster)
		}
	}
	return nil
}

// TestInvalidMember: a host's file names a member that etcd does not list, as an old backup or a person's mistake leaves it. A new member does not
// start with that file, and says why; a member that has data starts. Nobody may write what is published.
func TestInvalidMember(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 3)
	c.atRest(t)
	const invalid = "ETCD_MEMBER_IDS=bad1=https://192.0.2.1:2380,"

	t.Run("in the file of a member that has data: it starts", func(t *testing.T) {
		must(t, c.Power("master-2", false))
		must(t, c.SetEnvironment("master-2", strings.Replace(c.publishedFor(t, "master-2"), "ETCD_MEMBER_IDS=", invalid, 1)))
		must(t, c.Power("master-2", true))
		c.recovers(t)
		host, _ := c.Host("master-2")
		text, err := os.ReadFile(filepath.Join(filepath.Dir(host.DataDir), "configuration", hostfiles.Membership))
		if err != nil || !strings.Contains(string(text), "bad1=") {
			t.Errorf("the host's file is not the one that was written there: %q, %v", text, err)
		}
		must(t, c.SetEnvironment("master-2", ""))
	})

	t.Run("in the file of a new member: it waits for another file, and its predecessor stays", func(t *testing.T) {
		must(t, c.Holdfast.Stop())
		must(t, c.replacement(t.Context(), "master-0", "next"))
		c.nodeReady(t, "next")
		host, _ := c.Host("next")
		must(t, c.SetEnvironment("next", "ETCD_INITIAL_CLUSTER=next="+host.PeerURL+"\nETCD_INITIAL_CLUSTER_STATE=existing\nETCD_MEMBER_IDS=master-0="+host.PeerURL+"\n"))
		must(t, c.Holdfast.Start())
		must(t, c.WaitHoldfast(t.Context()))
		must(t, c.remove(t.Context(), "master-0"))
		c.hostLogs(t, "next", `"master-0" is not an etcd member ID`)
		eventually(t, quickly, "the learner", func(ctx context.Context) error { return c.lists(ctx, host.PeerURL) })
		e, err := hostenv.Parse(c.publishedFor(t, "next"))
		must(t, err)
		e.Members["bad1"] = []string{"https://192.0.2.1:2380"} // a member too many
		must(t, c.SetEnvironment("next", e.Text()))
		c.hostLogs(t, "next", "bad1")
		e.Members = nil
		must(t, c.SetEnvironment("next", e.Text()))
		c.hostLogs(t, "next", "ETCD_MEMBER_IDS is empty")
		c.comesToSay(t, []string{"the learner on Machine next has not started"}, "status")
		if m, err := c.seen(t.Context(), "master-0"); err != nil || !m.Held() {
			t.Errorf("Machine master-0 is not held, and its successor has not started: %+v, %v", m, err)
		}
		if role, err := c.role(t.Context(), "master-0"); err != nil || role != "voter" {
			t.Errorf("master-0 is %q, %v", role, err)
		}
		must(t, c.SetEnvironment("next", ""))
		c.becomes(t, "next", "voter")
		c.gone(t, slowly, "master-0")
		c.atRest(t)
	})

	t.Run("in what is published: nobody may write it there", func(t *testing.T) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: hostenv.Namespace, Name: hostenv.Name}}
		edit := fmt.Sprintf(`{"data":{"next":%q}}`, strings.Replace(c.publishedFor(t, "next"), "ETCD_MEMBER_IDS=", invalid, 1))
		if err := c.as(sandbox.Admin).Patch(t.Context(), cm, client.RawPatch(types.MergePatchType, []byte(edit))); err == nil || !strings.Contains(err.Error(), "(own-records)") {
			t.Errorf("%v, want a refusal by own-records", err)
		}
	})
}

// publishedFor waits until a host may start with what is published for it.
func (c *cluster) publishedFor(t *testing.T, name string) (text string) {
	t.Helper()
	eventually(t, quickly, "what is published for "+name, func(ctx context.Context) error {
		var cm corev1.ConfigMap
		err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.Name}, &cm)
		if text = cm.Data[name]; err == nil && !strings.Contains(text, hostenv.InitialClusterVariable+"=") {
			err = fmt.Errorf("%q", text)
		}
		return err
	})
	return text
}

// hostLogs waits for a text in what verify membership says on a host.
func (c *cluster) hostLogs(t *testing.T, name, text string) {
	t.Helper()
	eventually(t, quickly, "verify membership on "+name+" to say: "+text, func(context.Context) error {
		logs, err := filepath.Glob(filepath.Join(c.Logs, "*-"+name+".log"))
		if err != nil {
			return err
		}
		for _, log := range logs {
			if said, err := os.ReadFile(log); err == nil && strings.Contains(string(said), text) {
				return nil
			}
		}
		return fmt.Errorf("none of %q has it", logs)
	})
}
