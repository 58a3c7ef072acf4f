package registrations

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// hungEtcd does not answer until the time that it is given.
type hungEtcd struct{ until time.Time }

func (e hungEtcd) Read(ctx context.Context) quorum.Ring {
	if time.Now().Before(e.until) {
		<-ctx.Done()
		return quorum.Ring{Why: "etcd does not answer"}
	}
	return quorum.Ring{Known: true}
}

// TestFirstRead: a replica is ready a second after its start where etcd does not answer, and asks it until it does.
func TestFirstRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		first := &FirstRead{
			Etcd: hungEtcd{began.Add(7 * time.Second)}, Metrics: NewMetrics(prometheus.NewRegistry()), Log: testr.New(t), Asked: make(chan struct{}),
		}
		ended := make(chan error)
		go func() { ended <- first.Start(t.Context()) }()
		synctest.Wait()
		if first.Check(nil) == nil {
			t.Error("ready before etcd was asked")
		}
		<-first.Asked
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("etcd was waited for for %s", waited)
		}
		if err := first.Check(nil); err != nil {
			t.Errorf("not ready after etcd was asked: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited < 7*time.Second || waited > 20*time.Second {
			t.Errorf("etcd, which answers after 7 s, was asked for %s", waited)
		}
	})
}
