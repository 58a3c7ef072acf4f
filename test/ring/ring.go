package ring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/holdfast-dev/holdfast/test/loopback"
	"github.com/holdfast-dev/holdfast/test/pki"
)

// ClientFiles are what a client of the ring needs to dial it, as etcdctl's
// --cacert, --cert and --key take them.
type ClientFiles struct{ CA, Cert, Key string }

// ClientConfig issues a client certificate into the directory and returns the
// configuration of a client with it. The client is silent: it reports through errors.
func ClientConfig(ca *pki.Authority, dir string, endpoints ...string) (clientv3.Config, ClientFiles, error) {
	caFile, err := ca.WriteCert(dir)
	if err != nil {
		return clientv3.Config{}, ClientFiles{}, err
	}
	certFile, keyFile, err := ca.IssueFiles(dir, "etcd-client", pki.Leaf{CommonName: "etcd-client"})
	if err != nil {
		return clientv3.Config{}, ClientFiles{}, err
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return clientv3.Config{}, ClientFiles{}, fmt.Errorf("etcd client certificate: %w", err)
	}
	return clientv3.Config{
		Endpoints: endpoints,
		TLS: &tls.Config{
			RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		},
		// A member that starts or comes back is dialed again soon: gRPC's own
		// first pause is a second, and its longest two minutes.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		})},
		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 2 * time.Second,
		Logger:               zap.NewNop(),
	}, ClientFiles{CA: caFile, Cert: certFile, Key: keyFile}, nil
}

// Ring is a number of members that were started together.
type Ring struct {
	CA      *pki.Authority
	Block   *loopback.Block
	Ports   Ports
	Members []*Member
	// Config dials all members; Files are the same for command lines.
	Config clientv3.Config
	Files  ClientFiles

	dir  string
	next int
}

// Start starts a ring of n members, m0, m1 and so on, on addresses of a
// loopback block of its own, and returns when each of them answers a
// linearizable read. What it started it stops if it fails.
func Start(ctx context.Context, dir string, n int) (_ *Ring, err error) {
	block, err := loopback.Claim()
	if err != nil {
		return nil, err
	}
	r := &Ring{Block: block, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	ports, err := block.FreePorts(2)
	if err != nil {
		return nil, err
	}
	r.Ports = Ports{Client: ports[0], Peer: ports[1]}
	if r.CA, err = pki.NewAuthority("ring"); err != nil {
		return nil, err
	}
	specs := make([]MemberSpec, n)
	initial := map[string]string{}
	for i := range specs {
		specs[i] = r.Next(fmt.Sprintf("m%d", i))
		initial[specs[i].Name] = r.Ports.PeerURL(specs[i].Address)
	}
	var endpoints []string
	for _, spec := range specs {
		spec.InitialCluster, spec.Existing = initial, false
		m, err := StartMember(r.CA, spec)
		if err != nil {
			return nil, err
		}
		r.Members = append(r.Members, m)
		endpoints = append(endpoints, m.ClientURL())
	}
	if r.Config, r.Files, err = ClientConfig(r.CA, dir, endpoints...); err != nil {
		return nil, err
	}
	for _, m := range r.Members {
		if err := WaitHealthy(ctx, r.Config, m); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Next is the specification of one more member, on an address that no member
// had before. It is for a ring that lists it already: set InitialCluster before
// starting it, from the answer of the call that added it.
func (r *Ring) Next(name string) MemberSpec {
	r.next++
	return MemberSpec{
		Name: name, Address: r.Block.Addr(r.next).String(), Ports: r.Ports,
		Dir: filepath.Join(r.dir, name), Existing: true, Extra: []string{Unsynced},
	}
}

// Client dials the given endpoints, or all members that the ring was started with.
func (r *Ring) Client(endpoints ...string) (*clientv3.Client, error) {
	config := r.Config
	if len(endpoints) > 0 {
		config.Endpoints = endpoints
	}
	return clientv3.New(config)
}

// Stop kills the members and gives the block back. Members that were started
// beside Start are for their starter to stop.
func (r *Ring) Stop() error {
	var errs []error
	for _, m := range r.Members {
		errs = append(errs, m.Kill())
	}
	return errors.Join(append(errs, r.Block.Close())...)
}

// WaitHealthy waits until the member itself answers a linearizable read, for
// which it must know a leader. It fails when the process ends or the context does.
func WaitHealthy(ctx context.Context, config clientv3.Config, m *Member) error {
	config.Endpoints = []string{m.ClientURL()}
	client, err := clientv3.New(config)
	if err != nil {
		return fmt.Errorf("etcd %s: %w", m.spec.Name, err)
	}
	defer func() { _ = client.Close() }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		call, cancel := context.WithTimeout(ctx, time.Second)
		_, err = client.Get(call, "health")
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-m.proc.Done():
			return m.proc.Err()
		case <-ctx.Done():
			return fmt.Errorf("etcd %s is not healthy (log: %s): %w", m.spec.Name, m.proc.Log(), errors.Join(ctx.Err(), err))
		}
	}
}
