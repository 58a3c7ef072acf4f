package sandboxtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// Operate runs a stand-in for cluster-etcd-operator, at its pace, until the test ends.
func Operate(t testing.TB, s *sandbox.Sandbox, voters int) {
	t.Helper()
	etcd, err := s.EtcdClient(s.Endpoints()...)
	if err != nil {
		t.Fatal(err)
	}
	o, err := custodian.New(s.Config(sandbox.EtcdOperator), etcd, custodian.Options{Desired: voters, Resync: time.Minute, Revision: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	work.Go(func() { _ = o.Run(ctx, 100*time.Millisecond) }) // the last that its controllers failed with
	t.Cleanup(func() {
		cancel()
		work.Wait()
		_ = etcd.Close()
	})
}
