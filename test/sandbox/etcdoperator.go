package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/test/custodian"
)

// Operate has a stand-in play cluster-etcd-operator until end is called. Every so often it finds out whether it has to look; what it cannot
// do shows in the cluster.
func (s *Sandbox) Operate(options custodian.Options, every time.Duration) (end func() error, err error) {
	etcd, err := s.EtcdClient(s.Endpoints()...) // its own, as the real one
	if err != nil {
		return nil, err
	}
	o, err := custodian.New(s.Config(EtcdOperator), etcd, options)
	if err != nil {
		return nil, errors.Join(err, etcd.Close())
	}
	ctx, cancel := context.WithCancel(s.background)
	var work sync.WaitGroup
	work.Go(func() { _ = o.Run(ctx, every) })
	return func() error {
		cancel()
		work.Wait()
		return etcd.Close()
	}, nil
}
