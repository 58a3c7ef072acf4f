package verify

import (
	"context"
	"fmt"
	"time"
)

// Health says how the member at a client URL serves the ring: it answers, is a voter, knows a leader,
// and gives a linearizable read, which takes a quorum. A local read would still be answered by a
// member that lost the others.
func Health(ctx context.Context, e Etcd, clientURL string) (string, error) {
	status, err := e.Status(ctx, clientURL)
	switch {
	case err != nil:
		return "", fmt.Errorf("the member does not answer: %w", err)
	case status.Learner:
		return "", fmt.Errorf("member %x is a learner: it does not vote yet", status.Member)
	case status.Leader == 0:
		return "", fmt.Errorf("member %x knows of no leader: the ring lost its quorum, or this member lost the ring", status.Member)
	}
	began := time.Now()
	if err := e.Linearizable(ctx, clientURL); err != nil {
		return "", fmt.Errorf("member %x gives no linearizable read, for which the ring needs a quorum: %w", status.Member, err)
	}
	return fmt.Sprintf("member %x follows leader %x and gave a linearizable read in %.1f ms",
		status.Member, status.Leader, float64(time.Since(began).Microseconds())/1000), nil
}
