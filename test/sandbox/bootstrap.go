package sandbox

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// StartBootstrap has the ring grow by a voter on a host that is neither Machine nor Node, as the
// installer's temporary one is. It ends with the sandbox.
func (s *Sandbox) StartBootstrap(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	etcd, err := s.EtcdClient(s.VoterEndpoints()...)
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }()
	spec := s.bootstrapSpec()
	spec.Existing = true
	var added *clientv3.MemberAddResponse
	err = s.poll(ctx, func(ctx context.Context) (err error) { // etcd takes a member once its voters have been connected for 5 s
		added, err = etcd.MemberAddAsLearner(ctx, []string{spec.Ports.PeerURL(spec.Address)})
		return err
	})
	if err != nil {
		return fmt.Errorf("add the bootstrap member: %w", err)
	}
	for _, m := range added.Members {
		name := m.GetName()
		if m.GetID() == added.Member.GetID() {
			name = spec.Name
		}
		spec.InitialCluster[name] = m.GetPeerURLs()[0]
	}
	member, err := ring.StartMember(s.ca, spec)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, member.Kill)
	return s.poll(ctx, func(ctx context.Context) error {
		_, err := etcd.MemberPromote(ctx, added.Member.GetID())
		return err
	})
}

// startBootstrapAlone has the installer's member begin the ring. It ends with the sandbox, if it was not removed before.
func (s *Sandbox) startBootstrapAlone(ctx context.Context) error {
	spec := s.bootstrapSpec()
	spec.InitialCluster[spec.Name] = spec.Ports.PeerURL(spec.Address)
	member, err := ring.StartMember(s.ca, spec)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, member.Kill)
	if err := ring.WaitHealthy(ctx, s.EtcdConfig, member); err != nil {
		return err
	}
	_, err = s.cloud.members.read(ctx, time.Second)
	return err
}

func (s *Sandbox) bootstrapAddress() string { return s.block.Addr(4).String() }

func (s *Sandbox) bootstrapSpec() ring.MemberSpec {
	return ring.MemberSpec{
		Name: quorum.BootstrapName, Address: s.bootstrapAddress(), Ports: s.cloud.ports,
		Dir: filepath.Join(s.Dir, "hosts", "bootstrap"), Log: s.logFile("etcd-bootstrap"), InitialCluster: map[string]string{},
	}
}
