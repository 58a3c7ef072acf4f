package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/pki"
)

// files are certificate files of an authority of their own.
func files(t *testing.T) Config {
	t.Helper()
	g, dir := NewWithT(t), t.TempDir()
	ca, err := pki.NewAuthority("test")
	g.Expect(err).NotTo(HaveOccurred())
	root, err := ca.WriteCert(dir)
	g.Expect(err).NotTo(HaveOccurred())
	cert, key, err := ca.IssueFiles(dir, "client", pki.Leaf{CommonName: "client"})
	g.Expect(err).NotTo(HaveOccurred())
	return Config{Endpoints: []string{"https://127.0.0.1:2379"}, CACert: root, Cert: cert, Key: key}
}

// TestNew refuses what cannot work, and names it.
func TestNew(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	good := files(t)
	c, err := New(good)
	g.Expect(err).NotTo(HaveOccurred())
	c.Close()
	c.Close()

	garbage := filepath.Join(t.TempDir(), "garbage.crt")
	g.Expect(os.WriteFile(garbage, []byte("garbage"), 0o600)).To(Succeed())
	for name, spoil := range map[string]func(*Config){
		"no etcd endpoint":  func(c *Config) { c.Endpoints = nil },
		"http://127.0.0.1":  func(c *Config) { c.Endpoints = []string{"http://127.0.0.1:2379"} },
		"127.0.0.1:2379":    func(c *Config) { c.Endpoints = append(c.Endpoints, "127.0.0.1:2379") },
		"/nowhere/ca.crt":   func(c *Config) { c.CACert = "/nowhere/ca.crt" },
		"/nowhere/tls.crt":  func(c *Config) { c.Cert = "/nowhere/tls.crt" },
		"/nowhere/tls.key":  func(c *Config) { c.Key = "/nowhere/tls.key" },
		"garbage.crt holds": func(c *Config) { c.CACert = garbage },
		garbage:             func(c *Config) { c.Cert = garbage },
	} {
		bad := good
		spoil(&bad)
		_, err := New(bad)
		g.Expect(err).To(MatchError(ContainSubstring(name)))
	}
}

// TestRotation replaces certificate files under a client that began with the wrong ones.
func TestRotation(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	cfg := files(t)
	cfg.Endpoints = []string{r.Members[0].ClientURL()}
	c, err := New(cfg)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)
	got := c.Read(t.Context())
	g.Expect(got.Known).To(BeFalse())
	t.Log(got.Why)

	for from, to := range map[string]string{r.Files.CA: cfg.CACert, r.Files.Cert: cfg.Cert, r.Files.Key: cfg.Key} {
		pem, err := os.ReadFile(from)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(to, pem, 0o600)).To(Succeed())
	}
	g.Eventually(func(g Gomega) { whole(g, c.Read(t.Context()), 1) }, "2m", "50ms").Should(Succeed())
}

// TestRefused tells etcd's no from its silence.
func TestRefused(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		rpctypes.ErrUnhealthy:              true,
		rpctypes.ErrMemberLearnerNotReady:  true,
		rpctypes.ErrTooManyLearners:        true,
		rpctypes.ErrMemberNotLearner:       true,
		rpctypes.ErrMemberNotFound:         true,
		rpctypes.ErrPeerURLExist:           true,
		rpctypes.ErrMemberNotEnoughStarted: true,
		rpctypes.ErrBadLeaderTransferee:    true,
		rpctypes.ErrNotLeader:              true,
		rpctypes.ErrPermissionDenied:       true,

		rpctypes.ErrTimeout:                    false,
		rpctypes.ErrTimeoutDueToLeaderFail:     false,
		rpctypes.ErrTimeoutDueToConnectionLost: false,
		rpctypes.ErrTimeoutWaitAppliedIndex:    false,
		rpctypes.ErrLeaderChanged:              false,
		rpctypes.ErrNoLeader:                   false,
		rpctypes.ErrStopped:                    false,
		context.DeadlineExceeded:               false,
		context.Canceled:                       false,
		errors.New("connection reset"):         false,
		status.Error(codes.Unavailable, "x"):   false,
		status.Error(codes.Unknown, "x"):       false,
	} {
		if got := refused(err); got != want {
			t.Errorf("%v: refused %v, want %v", err, got, want)
		}
		e := deliver(t.Context(), "test", nil, func(context.Context, *clientv3.Client) error { return err })
		if !errors.Is(e, err) || errors.Is(e, ErrAmbiguous) == want {
			t.Errorf("%v became %v", err, e)
		}
	}
	late, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	e := deliver(late, "test", nil, func(context.Context, *clientv3.Client) error { t.Error("sent"); return nil })
	if e == nil || errors.Is(e, ErrAmbiguous) {
		t.Errorf("what was not sent is not ambiguous: %v", e)
	}
}

// TestSum joins answers that contradict each other, as they do around an election.
func TestSum(t *testing.T) {
	t.Parallel()
	say := func(term, leader, index uint64, version string) answer {
		return answer{status: &clientv3.StatusResponse{Header: &pb.ResponseHeader{}, RaftTerm: term, Leader: leader, RaftIndex: index, Version: version}}
	}
	for name, tc := range map[string]struct {
		answers []answer
		want    quorum.Ring
	}{
		"nobody answers":                        {make([]answer, 3), quorum.Ring{}},
		"the later term's leader":               {[]answer{say(3, 1, 10, "3.7.10"), say(4, 2, 12, "3.7.9"), {}}, quorum.Ring{Leader: 2, Index: 12, Version: "3.7.9"}},
		"an election in a later term":           {[]answer{say(3, 1, 10, "3.6.0"), say(4, 0, 9, "3.5.21"), {}}, quorum.Ring{Leader: 0, Index: 10, Version: "3.5.21"}},
		"one has not heard of the leader":       {[]answer{say(3, 0, 9, "3.7.3"), say(3, 3, 10, "3.7.3"), {}}, quorum.Ring{Leader: 3, Index: 10, Version: "3.7.3"}},
		"a version that is none counts nothing": {[]answer{say(3, 1, 9, "not provided"), say(3, 1, 8, "3.7.3"), {}}, quorum.Ring{Leader: 1, Index: 9, Version: "3.7.3"}},
	} {
		got := quorum.Ring{Members: []quorum.Member{{ID: 1}, {ID: 2}, {ID: 3}}}
		sum(&got, tc.answers)
		if got.Leader != tc.want.Leader || got.Index != tc.want.Index || got.Version != tc.want.Version {
			t.Errorf("%s: leader %d, index %d, version %q", name, got.Leader, got.Index, got.Version)
		}
	}
}

// TestTooOld: an etcd below 3.5 asks nobody for its member list.
func TestTooOld(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"": false, "not provided": false, "2.3.8": true, "3.3.0": true, "3.4.37": true, "3.5.0": false, "3.10.0": false, "4.0.0": false} {
		if why := tooOld(version); (why != "") != want || want && !strings.Contains(why, "a member is etcd "+version) {
			t.Errorf("%q: %q", version, why)
		}
	}
}

// TestAsk takes the first good answer, whoever is silent.
func TestAsk(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, err := New(files(t))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)
	by := func(u string) string { return "https://127.0.0.1:" + u }
	call := func(ctx context.Context, conn *clientv3.Client) (string, error) {
		switch u := conn.Endpoints()[0]; u {
		case by("1"): // silent
			<-ctx.Done()
			return "", ctx.Err()
		case by("2"):
			return "", rpctypes.ErrNoLeader
		default:
			return u, nil
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	g.Eventually(func(g Gomega) { // a busy computer may need another try
		from := time.Now()
		got, at, err := ask(ctx, c, []string{by("1"), "nonsense", by("2"), by("3"), by("4")}, call)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect([]string{got, at}).To(Equal([]string{by("3"), by("3")}))
		g.Expect(time.Since(from)).To(BeNumerically("<", 3*headStart), "one head start, for the silent one")
	}).WithTimeout(2 * time.Minute).Should(Succeed())

	_, _, err = ask(ctx, c, []string{"nonsense", by("2"), by("2")}, call)
	g.Expect(err).To(MatchError(rpctypes.ErrNoLeader))
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, _, err = ask(short, c, []string{by("1"), by("2")}, call)
	g.Expect(err).To(And(MatchError(context.DeadlineExceeded), MatchError(rpctypes.ErrNoLeader)))
}

// TestFollow keeps to what the last good read said, never to less.
func TestFollow(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, err := New(files(t))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)
	seed, b, l := "https://127.0.0.1:2379", "https://[::1]:2", "https://127.0.0.1:3"
	members := []quorum.Member{
		{ID: 1, Name: "b", ClientURLs: []string{"%", "http://127.0.0.1:1", b + "/"}},
		{ID: 2, Name: "l", ClientURLs: []string{l}, Learner: true},
		{ID: 3},
	}
	c.follow(b, 0, members)
	g.Expect(c.endpoints()).To(Equal([]string{b, seed}))
	for _, u := range []string{seed, b, l} {
		_, err := c.conn(u)
		g.Expect(err).NotTo(HaveOccurred())
	}
	c.follow(b, 0, members)
	g.Expect(c.conns).To(HaveLen(3))
	g.Expect(c.Read(t.Context()).Known).To(BeFalse())
	g.Expect(c.endpoints()).To(Equal([]string{b, seed}), "a failed read changes nothing")
	c.follow(seed, 0, members[1:])
	g.Expect(c.endpoints()).To(Equal([]string{seed, b}), "a list without voters is none to follow")
	g.Expect(c.conns).To(HaveLen(2))
	g.Expect(c.conns).NotTo(HaveKey(b))
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"", "https://a:1", "https://[fe80::1%25eth0]:2379/x?y", "://", "https://a:1@b", "unix:///x", "https://\x00:1", "https://a:99999999"} {
		f.Add(s)
	}
	ca, err := pki.NewAuthority("fuzz")
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	root, err := ca.WriteCert(dir)
	if err != nil {
		f.Fatal(err)
	}
	cert, key, err := ca.IssueFiles(dir, "client", pki.Leaf{CommonName: "client"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := New(Config{Endpoints: []string{"https://127.0.0.1:1"}, CACert: root, Cert: cert, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		u, err := target(raw)
		if err != nil {
			return
		}
		if again, err := target(u); err != nil || again != u {
			t.Fatalf("%q became %q became %q: %v", raw, u, again, err)
		}
		c.follow(u, 0, []quorum.Member{{Name: "m", ClientURLs: []string{raw}}})
		if _, err := c.conn(raw); err != nil {
			_ = fmt.Sprint(err) // refused by the dialer, without a panic
		}
	})
}

// TestLearnerWithoutConnection: a learner that takes connections and says nothing, as while it is sent its data, does not hold up a read.
func TestLearnerWithoutConnection(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	mute, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer mute.Close()
	c, err := New(files(t))
	g.Expect(err).NotTo(HaveOccurred())
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	learner := quorum.Member{ID: 1, Name: "new", Learner: true, ClientURLs: []string{"https://" + mute.Addr().String()}}
	c.visit(ctx, &learner, 1)
	g.Expect(ctx.Err()).NotTo(HaveOccurred(), "the read waited for it")
	g.Expect(learner.Healthy).To(BeFalse())
	g.Expect(learner.Why).To(ContainSubstring("takes no connection yet"))
}

// TestReason: the cause comes first in what people read.
func TestReason(t *testing.T) {
	for message, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.1:2379: connect: connection refused"`: "Error while dialing: dial tcp 10.0.0.1:2379: connect: connection refused",
		`last connection error: connection error: desc = "error reading server preface: EOF"`:                            "error reading server preface: EOF",
		`connection error: desc = not quoted`: `connection error: desc = not quoted`,
		`etcdserver: no leader`:               `etcdserver: no leader`,
		// What differs at each try would be a new text each time.
		`read tcp 10.0.0.1:43210->10.0.0.2:2379: read: connection reset by peer`:                                             `read tcp 10.0.0.1->10.0.0.2:2379: read: connection reset by peer`,
		`x509: certificate has expired or is not yet valid: current time 2026-01-02T00:00:00Z is after 2026-01-01T00:00:00Z`: `x509: certificate has expired or is not yet valid: current time is after 2026-01-01T00:00:00Z`,
	} {
		if got := reason(status.Error(codes.Unavailable, message)); got != want {
			t.Errorf("%s: %q", message, got)
		}
	}
}
