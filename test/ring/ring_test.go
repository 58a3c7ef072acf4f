package ring_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/test/ring"
)

// TestRing starts three members, cuts one, restarts it and lets a fourth join as a learner.
func TestRing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := ring.Start(ctx, t.TempDir(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := r.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })

	if err := r.Members[0].Kill(); err != nil {
		t.Fatal(err)
	}
	// It may have been the leader: what was proposed to it is lost until the election.
	if err := ring.WaitHealthy(ctx, r.Config, r.Members[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "key", "two of three are a quorum"); err != nil {
		t.Fatal(err)
	}
	if r.Members[0], err = r.Members[0].Restart(r.CA); err != nil {
		t.Fatal(err)
	}
	if err := ring.WaitHealthy(ctx, r.Config, r.Members[0]); err != nil {
		t.Fatal(err)
	}

	spec := r.Next("m3")
	list := addLearner(ctx, t, client, r.Ports.PeerURL(spec.Address))
	spec.InitialCluster = map[string]string{}
	for _, m := range list.Members {
		name := m.Name
		if name == "" {
			name = spec.Name
		}
		spec.InitialCluster[name] = m.PeerURLs[0]
	}
	learner, err := ring.StartMember(r.CA, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = learner.Kill() })
	for {
		if _, err = client.MemberPromote(ctx, list.Member.ID); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the learner was never ready: %v", err)
		case <-learner.Process().Done():
			t.Fatal(learner.Process().Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err := ring.WaitHealthy(ctx, r.Config, learner); err != nil {
		t.Fatal(err)
	}
}

// addLearner tries again while etcd is not sure of its peers yet, which it says
// for the first 5 s of a ring and after a member was away.
func addLearner(ctx context.Context, t *testing.T, client *clientv3.Client, peer string) *clientv3.MemberAddResponse {
	t.Helper()
	for {
		added, err := client.MemberAddAsLearner(ctx, []string{peer})
		if err == nil {
			return added
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
