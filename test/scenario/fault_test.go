package scenario_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestFaults replaces a Machine again and again, each time with another fault in the middle. The
// history sees to the invariants and to the writes; each replacement has to complete.
func TestFaults(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--member-dead-timeout=3s"}})
	c.watch(t, 2)
	c.atRest(t)
	generation := 0
	// begin deletes a Machine and creates its replacement.
	begin := func(t *testing.T, old string) (next string) {
		t.Helper()
		generation++
		next = fmt.Sprintf("next-%d", generation)
		must(t, c.remove(t.Context(), old))
		must(t, c.replacement(t.Context(), old, next))
		return next
	}
	end := func(t *testing.T, old, next string) {
		t.Helper()
		c.gone(t, slowly, old)
		c.becomes(t, next, "voter")
		c.recovers(t)
	}

	t.Run("the leader is killed after each step", func(t *testing.T) {
		old := c.oldest(t)
		next := begin(t, old)
		for _, step := range []stage{added, started, promoted, removed} {
			c.reaches(t, step, old, next)
			must(t, c.hostProcess(t, c.leader(t)).Signal(syscall.SIGKILL))
		}
		end(t, old, next)
	})

	t.Run("the API server is killed after each step", func(t *testing.T) {
		old := c.oldest(t)
		next := begin(t, old)
		for _, step := range []stage{added, promoted, removed} {
			c.reaches(t, step, old, next)
			must(t, c.APIServer.Restart())
		}
		end(t, old, next)
	})

	t.Run("Holdfast is killed after each action", func(t *testing.T) {
		// On a busy computer several actions are over before the first is seen; then the next replacement is tried.
		for killed, tries := 0, 0; killed < 4; tries++ {
			if tries == 3 {
				t.Fatalf("Holdfast was killed %d times in %d replacements", killed, tries)
			}
			old := c.oldest(t)
			actions := c.actions(t)
			next := begin(t, old)
			for c.isThere(t, old) {
				eventually(t, slowly, "Holdfast's next action, or the end", func(context.Context) error {
					if c.actions(t) == actions && c.isThere(t, old) {
						return errors.New("nothing yet")
					}
					return nil
				})
				actions = c.actions(t)
				must(t, c.Holdfast.Restart())
				killed++
			}
			must(t, c.WaitHoldfast(t.Context()))
			end(t, old, next)
		}
	})

	t.Run("a voter hangs, and the learner waits until a voter can be removed after it", func(t *testing.T) {
		old := c.oldest(t)
		hung := c.hostProcess(t, c.follower(t, old))
		next := begin(t, old)
		c.reaches(t, added, old, next)
		must(t, hung.Signal(syscall.SIGSTOP))
		t.Cleanup(func() { _ = hung.Signal(syscall.SIGCONT) })
		// The API server itself hangs with it, until its connection to that member times out.
		c.comesToSay(t, []string{"is promoted once a voter can be removed after it: 2 of 3 voters are healthy"}, "explain", old)
		if role, err := c.role(t.Context(), next); err != nil || role != "learner" {
			t.Errorf("the member on %s is a %s, %v", next, role, err)
		}
		if m, err := c.seen(t.Context(), old); err != nil || !m.Protected() {
			t.Errorf("Machine %s is not protected: %v", old, err)
		}
		must(t, hung.Signal(syscall.SIGCONT))
		end(t, old, next)
	})

	t.Run("somebody else has the membership lock", func(t *testing.T) {
		key := lockPrefix + "/0"
		_, err := c.etcd.Put(t.Context(), key, "x")
		must(t, err)
		t.Cleanup(func() { _, _ = c.etcd.Delete(context.Background(), key) })
		old := c.oldest(t)
		next := begin(t, old)
		c.comesToSay(t, []string{"LockForeign", "etcdctl del " + key}, "status")
		c.comesToSay(t, []string{"etcdctl del " + key}, "explain", old)
		c.nodeReady(t, next)
		if role, err := c.role(t.Context(), next); err != nil || role != "" {
			t.Errorf("the replacement is a %q: %v", role, err)
		}
		_, err = c.etcd.Delete(t.Context(), key)
		must(t, err)
		end(t, old, next)
	})

	t.Run("the learner hangs", func(t *testing.T) {
		old := c.oldest(t)
		next := begin(t, old)
		c.reaches(t, added, old, next)
		var learner *process.Process
		eventually(t, quickly, "the learner's process", func(context.Context) error {
			host, _ := c.Host(next)
			if learner = host.Etcd; learner == nil {
				return errors.New("none runs")
			}
			return nil
		})
		must(t, learner.Signal(syscall.SIGSTOP))
		t.Cleanup(func() { _ = learner.Signal(syscall.SIGCONT) })
		c.tells(t, old, "ReplacementWaits")
		if role, err := c.role(t.Context(), next); err != nil || role == "voter" {
			t.Errorf("a learner that hangs is a %q: %v", role, err)
		}
		must(t, learner.Signal(syscall.SIGCONT))
		end(t, old, next)
	})

	t.Run("the leader hangs inside a membership change", func(t *testing.T) {
		locked := c.locks(t)
		hang := func() {
			leader := c.hostProcess(t, c.leader(t))
			must(t, leader.Signal(syscall.SIGSTOP))
			eventually(t, quickly, "another leader", func(context.Context) error {
				host, _ := c.Host(c.leader(t))
				if host.Etcd == nil || host.Etcd == leader {
					return errors.New("there is none")
				}
				return nil
			})
			must(t, leader.Signal(syscall.SIGCONT))
		}
		// Whether the change is applied nobody can tell then: added, promoted, removed. A replacement takes the lock twice at least; on
		// a busy computer it may be over before the second time is seen, and then the next replacement is tried.
		for hung, tries := 0, 0; hung < 2; tries++ {
			if tries == 3 {
				t.Fatalf("the leader hung %d times in %d replacements", hung, tries)
			}
			old := c.oldest(t)
			next := begin(t, old)
			for c.isThere(t, old) {
				select {
				case <-locked:
					if hung < 3 {
						hung++
						hang()
					}
				case <-time.After(time.Second): // is it over?
				}
			}
			end(t, old, next)
		}
	})

	t.Run("two Holdfasts, one paused inside a step", func(t *testing.T) {
		second, err := c.SecondHoldfast()
		must(t, err)
		t.Cleanup(func() {
			if err := second.Stop(5 * time.Second); err != nil {
				t.Error(err)
			}
		})
		locked := c.locks(t)
		var old, next string
		// The one that serves the webhooks goes on, as one of several replicas does. The signal may come
		// after a step that was quick; then the next one is tried, and the next replacement.
		for paused := false; !paused; {
			if old == "" || !c.isThere(t, old) {
				if old != "" {
					end(t, old, next)
				}
				old = c.oldest(t)
				next = begin(t, old)
			}
			select {
			case holder := <-locked:
				if !strings.HasSuffix(holder, fmt.Sprintf("/%d", second.PID())) {
					continue
				}
			case <-time.After(time.Second): // is it over?
				continue
			}
			must(t, second.Signal(syscall.SIGSTOP))
			got, err := c.etcd.Get(t.Context(), lockPrefix, clientv3.WithPrefix())
			if paused = err == nil && len(got.Kvs) > 0; !paused {
				must(t, second.Signal(syscall.SIGCONT))
			}
		}
		t.Cleanup(func() { _ = second.Signal(syscall.SIGCONT) })
		c.gone(t, slowly, old) // the other one waits for the lease, and goes on
		must(t, second.Signal(syscall.SIGCONT))
		end(t, old, next)
	})
}

// stage is how far a replacement is, as etcd lists its members.
type stage string

const (
	begun    stage = "it begins"
	added    stage = "a learner is added"
	started  stage = "the learner started"
	promoted stage = "the learner is promoted"
	removed  stage = "the old member is removed"
)

const lockPrefix = "/holdfast/membership"

// reaches waits until a replacement is as far as that, or further.
func (c *cluster) reaches(t *testing.T, want stage, old, next string) {
	t.Helper()
	eventually(t, slowly, string(want), func(ctx context.Context) error {
		list, err := c.members(ctx)
		if err != nil {
			return err
		}
		host, _ := c.Host(next)
		is := map[stage]bool{begun: true, removed: true}
		for _, m := range list {
			if m.GetName() == old {
				is[removed] = false
			}
			if len(m.GetPeerURLs()) > 0 && m.GetPeerURLs()[0] == host.PeerURL {
				is[added], is[started], is[promoted] = true, m.GetName() != "", !m.GetIsLearner()
			}
		}
		if !is[want] {
			return fmt.Errorf("%v", list)
		}
		return nil
	})
}

// members lists etcd's members.
func (c *cluster) members(ctx context.Context) ([]*etcdserverpb.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	return list.Members, nil
}

// leader is the name of etcd's leader.
func (c *cluster) leader(t *testing.T) string {
	t.Helper()
	var name string
	eventually(t, quickly, "a leader", func(ctx context.Context) error {
		list, err := c.members(ctx)
		if err != nil {
			return err
		}
		for _, m := range list {
			if m.GetIsLearner() || len(m.GetClientURLs()) == 0 {
				continue
			}
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			status, err := c.etcd.Status(ctx, m.GetClientURLs()[0])
			cancel()
			if err == nil && status.Leader == status.Header.GetMemberId() {
				name = m.GetName()
				return nil
			}
		}
		return errors.New("no member says that it leads")
	})
	return name
}

// follower is the name of a voter that neither leads nor is the one that is named.
func (c *cluster) follower(t *testing.T, but string) string {
	t.Helper()
	leader := c.leader(t)
	list, err := c.members(t.Context())
	must(t, err)
	for _, m := range list {
		if name := m.GetName(); !m.GetIsLearner() && name != leader && name != but {
			return name
		}
	}
	t.Fatalf("no follower but %s in %v", but, list)
	return ""
}

// oldest is the name of the voter that was listed first and does not lead; a leader is removed in
// TestThree.
func (c *cluster) oldest(t *testing.T) string {
	t.Helper()
	return c.follower(t, "")
}

func (c *cluster) hostProcess(t *testing.T, name string) *process.Process {
	t.Helper()
	host, ok := c.Host(name)
	if !ok || host.Etcd == nil {
		t.Fatalf("no etcd runs on host %s", name)
	}
	return host.Etcd
}

func (c *cluster) isThere(t *testing.T, name string) (there bool) {
	t.Helper()
	eventually(t, quickly, "the API server to answer", func(ctx context.Context) error {
		m, err := c.machine(ctx, name)
		there = m != nil
		return err
	})
	return there
}

// actions is how many actions Holdfast has taken since the sandbox was started, by its log.
func (c *cluster) actions(t *testing.T) int {
	t.Helper()
	log, err := os.ReadFile(c.Holdfast.Process().Log())
	must(t, err)
	return bytes.Count(log, []byte(`"step": `))
}

// locks yields the holder each time the membership lock is taken, from now on.
func (c *cluster) locks(t *testing.T) <-chan string {
	t.Helper()
	out := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	events := c.etcd.Watch(clientv3.WithRequireLeader(ctx), lockPrefix, clientv3.WithPrefix())
	go func() {
		for ctx.Err() == nil {
			for response := range events {
				for _, event := range response.Events {
					if event.Type == mvccpb.PUT && len(event.Kv.GetValue()) > 0 { // who holds it signs it
						select {
						case out <- string(event.Kv.GetValue()):
						default: // nobody waits
						}
					}
				}
			}
			events = c.etcd.Watch(clientv3.WithRequireLeader(ctx), lockPrefix, clientv3.WithPrefix())
		}
	}()
	return out
}
