package etcd

import (
	"testing"

	. "github.com/onsi/gomega"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestAlarms: what etcd has raised is read with its members, a member whose data are corrupt is no healthy one, and where any may be that
// one, nothing is known of the ring.
func TestAlarms(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	c := startClient(t, r)
	before := c.Read(t.Context())
	whole(g, before, 3)
	g.Expect(before.Alarms).To(BeEmpty())

	conn, err := c.conn(r.Members[0].ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	raise := func(action pb.AlarmRequest_AlarmAction, kind pb.AlarmType, member uint64) {
		t.Helper()
		_, err := pb.NewMaintenanceClient(conn.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: action, Alarm: kind, MemberID: member})
		g.Expect(err).NotTo(HaveOccurred())
	}
	one := before.Members[0].ID
	for _, test := range []struct {
		kind    pb.AlarmType
		member  quorum.MemberID
		known   bool
		healthy int
	}{
		{pb.AlarmType_NOSPACE, one, true, 3},
		{pb.AlarmType_CORRUPT, one, true, 2},
		{pb.AlarmType_CORRUPT, 0xdead, true, 3}, // one that has been removed since
		{pb.AlarmType_CORRUPT, 0, false, 0},
	} {
		raise(pb.AlarmRequest_ACTIVATE, test.kind, uint64(test.member))
		g.Eventually(func(g Gomega) { // each member applies it in its time
			got := c.Read(t.Context())
			g.Expect(got.Alarms).To(Equal([]quorum.Alarm{{Kind: test.kind.String(), Member: test.member}}))
			g.Expect(got.Known).To(Equal(test.known), got.Why)
			_, healthy := got.Voters()
			g.Expect(healthy).To(Equal(test.healthy), "%+v", got.Members)
			if test.healthy == 2 {
				g.Expect(got.Members[0].Healthy).To(BeFalse())
			}
		}, "2m", "20ms").Should(Succeed())
		raise(pb.AlarmRequest_DEACTIVATE, test.kind, uint64(test.member))
		g.Eventually(func(g Gomega) {
			got := c.Read(t.Context())
			whole(g, got, 3)
			g.Expect(got.Alarms).To(BeEmpty())
		}, "2m", "20ms").Should(Succeed())
	}
}
