// Package ring runs etcd members as processes of their own, with mutual TLS
// among them and towards clients.
package ring

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/process"
)

// Ports that a member listens on, the same for each member of a ring: members
// differ in their address.
type Ports struct{ Client, Peer int }

// ClientURL is where the member on that address serves clients.
func (p Ports) ClientURL(address string) string { return url(address, p.Client) }

// PeerURL is where the member on that address serves its peers.
func (p Ports) PeerURL(address string) string { return url(address, p.Peer) }

func url(address string, port int) string {
	return "https://" + net.JoinHostPort(address, strconv.Itoa(port))
}

// MemberSpec says which member to start.
type MemberSpec struct {
	Name    string
	Address string
	Ports   Ports
	// Dir holds the member's data (in data/), certificates and log.
	Dir string
	// Log is the log file; empty means etcd.log in Dir.
	Log string
	// InitialCluster maps each member's name to its peer URL, this one's included.
	InitialCluster map[string]string
	// Existing is true for a member that joins a ring which lists it already.
	Existing bool
	// Extra flags for etcd.
	Extra []string
}

// DataDir is the directory of the member's write-ahead log and snapshots.
func (s MemberSpec) DataDir() string { return filepath.Join(s.Dir, "data") }

// Member is an etcd process.
type Member struct {
	spec MemberSpec
	proc *process.Process
}

// Unsynced is a flag for etcd in tests: it leaves it to the operating system when data reach the disk. A test kills processes, never the
// computer, so whatever was written is there when etcd is started again.
const Unsynced = "--unsafe-no-fsync"

// OwnAddress are flags for the etcd of that path: it speaks to its peers from its own address, as from a host of its own. Who cuts off the one cuts
// off the other. Before 3.6 etcd cannot: it speaks from 127.0.0.1.
func OwnAddress(path string) ([]string, error) {
	if old, err := assets.Older(path, "3.6"); err != nil || old {
		return nil, err
	}
	return []string{"--feature-gates=SetMemberLocalAddr=true"}, nil
}

// Grace is how long a member that is asked to end may take.
const Grace = 5 * time.Second

// StartMember starts an etcd and returns once its process runs; it is not ready then.
func StartMember(ca *pki.Authority, spec MemberSpec) (*Member, error) {
	path, err := assets.Path("etcd")
	if err != nil {
		return nil, err
	}
	own, err := OwnAddress(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd %s: %w", spec.Name, err)
	}
	caFile, err := ca.WriteCert(spec.Dir)
	if err != nil {
		return nil, fmt.Errorf("etcd %s: %w", spec.Name, err)
	}
	certFile, keyFile, err := ca.IssueFiles(spec.Dir, "etcd", pki.Leaf{
		CommonName: "etcd " + spec.Name,
		// A connection within 127.0.0.0/8 comes from 127.0.0.1 whatever address
		// its process listens on, and etcd compares a peer's certificate with
		// the address that it comes from.
		Hosts: []string{spec.Address, "127.0.0.1"},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd %s: %w", spec.Name, err)
	}
	if spec.Log == "" {
		spec.Log = filepath.Join(spec.Dir, "etcd.log")
	}
	var peers []string
	for _, name := range slices.Sorted(maps.Keys(spec.InitialCluster)) {
		peers = append(peers, name+"="+spec.InitialCluster[name])
	}
	state := "new"
	if spec.Existing {
		state = "existing"
	}
	client, peer := spec.Ports.ClientURL(spec.Address), spec.Ports.PeerURL(spec.Address)
	proc, err := process.Start(process.Spec{
		Name: "etcd " + spec.Name, Path: path, Log: spec.Log, Env: process.Roomy(),
		Args: append([]string{
			"--name=" + spec.Name, "--data-dir=" + spec.DataDir(),
			"--initial-cluster=" + strings.Join(peers, ","), "--initial-cluster-state=" + state,
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
			"--client-cert-auth", "--trusted-ca-file=" + caFile, "--cert-file=" + certFile, "--key-file=" + keyFile,
			"--peer-client-cert-auth", "--peer-trusted-ca-file=" + caFile,
			"--peer-cert-file=" + certFile, "--peer-key-file=" + keyFile,
		}, append(own, spec.Extra...)...),
	})
	if err != nil {
		return nil, err
	}
	return &Member{spec: spec, proc: proc}, nil
}

// Spec is what the member was started with.
func (m *Member) Spec() MemberSpec { return m.spec }

// Process is the etcd process.
func (m *Member) Process() *process.Process { return m.proc }

// ClientURL is where it serves clients.
func (m *Member) ClientURL() string { return m.spec.Ports.ClientURL(m.spec.Address) }

// PeerURL is where it serves its peers.
func (m *Member) PeerURL() string { return m.spec.Ports.PeerURL(m.spec.Address) }

// Stop ends it in order, as the kubelet would. Its data stays.
func (m *Member) Stop() error { return m.proc.Stop(Grace) }

// Kill ends it as a power cut would. Its data stays.
func (m *Member) Kill() error { return m.proc.Stop(0) }

// Restart ends it and starts it again on its data.
func (m *Member) Restart(ca *pki.Authority) (*Member, error) {
	if err := m.Stop(); err != nil {
		return nil, err
	}
	return StartMember(ca, m.spec)
}
