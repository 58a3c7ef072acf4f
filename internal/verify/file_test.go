package verify

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// transcript is what a check tells, for a test that reads it meanwhile.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestFile is the start of a new host, whose files come one after the other: no environment, no certificates, an environment
// without this host, and one with it.
func TestFile(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(20 * time.Second)
	r := startRing(t, 1)
	spec := r.Next("late")
	r.node(spec)
	path := filepath.Join(t.TempDir(), "membership.env")
	publish := func() {
		environments, err := hostenv.Environments(quorum.NewJoin(&quorum.Snapshot{Ring: r.client(t, r.Members...).Read(t.Context()), Nodes: r.nodes}))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(path+".new", []byte(environments[spec.Name].Text()), 0o600)).To(Succeed())
		g.Expect(os.Rename(path+".new", path)).To(Succeed())
	}
	certificates := make(chan struct{})
	connect := func(hostenv.Environment) (Etcd, func(), error) {
		select {
		case <-certificates:
			return r.client(t, r.Members...), func() {}, nil
		default:
			return nil, nil, errors.New("no certificate is there yet")
		}
	}
	out := &transcript{}
	check := Membership{
		File: path, Connect: connect, PeerURL: spec.Ports.PeerURL(spec.Address), DataDir: spec.DataDir(),
		Timeout: time.Minute, QuorumWait: time.Second, Out: out,
	}
	done := make(chan error, 1)
	go func() { done <- check.Run(t.Context()) }()

	g.Eventually(out.String).Should(MatchRegexp(`Waiting \(.*\): ` + path + " is not there yet"))
	publish()
	g.Eventually(out.String).Should(ContainSubstring("): no certificate is there yet"))
	close(certificates)
	g.Eventually(out.String).Should(ContainSubstring("etcd lists no member"))
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(path, append(text, "# The same, written again.\n"...), 0o600)).To(Succeed())
	g.Eventually(out.String).Should(ContainSubstring(path + " changed: once more."))
	_, err = r.admin.MemberAddAsLearner(t.Context(), []string{check.PeerURL})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(out.String).Should(ContainSubstring("): Not expected: etcd lists unstarted member"), "the file is behind etcd")
	publish()
	g.Eventually(done).Should(Receive(BeNil()), "out: %s", out)
	g.Expect(out.String()).To(ContainSubstring("Start: "))
	g.Expect(spec.DataDir()).To(BeADirectory())
}

// TestFileThatNeverComes is a host on which nothing writes the file: the run ends with that reason, by its timeout or when it is told to.
func TestFileThatNeverComes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "membership.env")
	check := Membership{File: path, Timeout: 300 * time.Millisecond, Out: &transcript{}}
	g.Expect(check.Run(t.Context())).To(MatchError(And(ContainSubstring("not within 300ms"), ContainSubstring("is not there yet"))))

	g.Expect(os.WriteFile(path, []byte("ETCD_INITIAL_CLUSTER_STATE=perhaps"), 0o600)).To(Succeed())
	out := &transcript{}
	check.Timeout, check.Out = time.Hour, out
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- check.Run(ctx) }()
	g.Eventually(out.String).Should(ContainSubstring(`ETCD_INITIAL_CLUSTER_STATE is "perhaps"`))
	cancel()
	g.Eventually(done).Should(Receive(MatchError(ContainSubstring("stopped while waiting"))))
}
