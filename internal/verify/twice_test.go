package verify

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// TestListedTwice: after an upgrade, etcd may list a member again that was removed long ago, at the peer URL of a member that runs (etcd
// issues 13196 and 20967). The member that runs starts on its own data, although the other one is listed first, and its environment names
// each URL once.
func TestListedTwice(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(60 * time.Second)
	r := startRing(t, 5)
	id := quorum.MemberID(r.id(t, r.Members[0].Spec()))
	for _, m := range r.Members {
		g.Expect(m.Stop()).To(Succeed())
	}
	for _, m := range r.Members {
		listAgain(t, m.Spec(), id, 1)
	}
	start := func(i int) {
		var err error
		r.Members[i], err = ring.StartMember(r.CA, r.Members[i].Spec())
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = r.Members[i].Kill() })
	}
	for i := range r.Members[1:] {
		start(i + 1)
	}
	client := r.client(t, r.Members...)
	lists := func() string {
		ring := client.Read(t.Context())
		return fmt.Sprintf("%d members, known %t %s", len(ring.Members), ring.Known, ring.Why)
	}
	if old, err := assets.Before("etcd", "3.6"); err != nil {
		t.Fatal(err)
	} else if old { // It goes by its log, and never by this table: the defect shows when it is upgraded.
		g.Eventually(lists).Should(HavePrefix("5 members, known true"))
		return
	}
	g.Eventually(lists).Should(HavePrefix("6 members, known true"))

	check := r.check(t, r.Members[0].Spec())
	g.Expect(check.Environment.Members).To(HaveLen(6))
	g.Expect(check.Environment.InitialCluster).To(HaveLen(5))
	g.Expect(check.Run(t.Context())).To(Succeed())
	panics, err := assets.Before("etcd", "3.7")
	g.Expect(err).NotTo(HaveOccurred())
	now := client.Read(t.Context())
	for i := range now.Members { // the first does not run, and is in raft
		m := &now.Members[i]
		g.Expect(m.InRaft).To(Equal(m.ID != 1 && panics), m.String()) // etcd 3.7 takes it into raft, too, and so does not say
		g.Expect(now.Removable(m)).To(Equal(m.ID != 1 || !panics), m.String())
	}
	start(0)
	g.Eventually(r.probe(t, r.Members[0])).Should(Succeed())
	_, err = r.admin.MemberRemove(t.Context(), 1)
	if panics { // nobody is told to do that
		g.Expect(err).To(HaveOccurred())
		for i := range r.Members {
			g.Eventually(r.Members[i].Process().Done()).Should(BeClosed())
		}
		return
	}
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(lists).Should(HavePrefix("5 members, known true"))
}

// listAgain has a member that is stopped list another one under a second ID, too, as etcd's defect leaves it in the database.
func listAgain(t *testing.T, spec ring.MemberSpec, id, again quorum.MemberID) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(spec.DataDir(), "member", "snap", "db"), 0o600, &bbolt.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		members, fields := tx.Bucket([]byte("members")), map[string]json.RawMessage{}
		if err := json.Unmarshal(members.Get([]byte(id.Hex())), &fields); err != nil {
			return err
		}
		fields["id"] = json.RawMessage(strconv.FormatUint(uint64(again), 10))
		value, err := json.Marshal(fields)
		if err != nil {
			return err
		}
		return members.Put([]byte(again.Hex()), value)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
