package hostenv_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestTranscripts renders rings that are written down, one line for each member and Node.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := read(t, d.Input)
			out := &strings.Builder{}
			environments, err := hostenv.Environments(quorum.NewJoin(s))
			if err != nil {
				fmt.Fprintf(out, "environments: %v\n", err)
			}
			for _, node := range slices.Sorted(maps.Keys(environments)) {
				fmt.Fprintf(out, "%s\n", node)
				for line := range strings.Lines(environments[node].Text()) {
					fmt.Fprintf(out, "  %s", line)
				}
			}
			endpoints, err := hostenv.Endpoints(quorum.NewJoin(s))
			if err != nil {
				fmt.Fprintf(out, "endpoints: %v\n", err)
			}
			for _, e := range endpoints {
				fmt.Fprintf(out, "endpoint %x %s port %d ready=%t node=%q\n", e.ID, e.Host, e.Port, e.Ready, e.Node)
			}
			return out.String()
		})
	})
}

// read makes a Snapshot of lines such as
//
//	member 1 a https://10.0.0.1:2380 client=https://10.0.0.1:2379 learner dead
//	node master-0 10.0.0.1
//	unknown no answer in time
func read(t *testing.T, text string) *quorum.Snapshot {
	s := &quorum.Snapshot{Ring: quorum.Ring{Known: true}}
	for line := range strings.Lines(text) {
		word := strings.Fields(line)
		switch word[0] {
		case "unknown":
			s.Ring.Known, s.Ring.Why = false, strings.Join(word[1:], " ")
		case "member":
			id, err := quorum.ParseMemberID(word[1])
			if err != nil {
				t.Fatal(err)
			}
			m := quorum.Member{ID: id, Name: strings.TrimPrefix(word[2], "-"), Healthy: true}
			for _, w := range word[3:] {
				client, isClient := strings.CutPrefix(w, "client=")
				switch {
				case isClient:
					m.ClientURLs = append(m.ClientURLs, client)
				case w == "learner":
					m.Learner = true
				case w == "dead":
					m.Healthy = false
				default:
					m.PeerURLs = append(m.PeerURLs, w)
				}
			}
			s.Ring.Members = append(s.Ring.Members, m)
		case "node":
			n := quorum.Node{Name: word[1], Ready: true}
			for _, w := range word[2:] {
				n.Addresses = append(n.Addresses, netip.MustParseAddr(w))
			}
			s.Nodes = append(s.Nodes, n)
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return s
}

func TestParsePeers(t *testing.T) {
	for _, c := range [][2]string{
		{"", ""},
		{"a=https://h:1", "a=https://h:1"},
		{" a=https://h:1 , b=https://[::1]:2,", "a=https://h:1,b=https://[::1]:2"},
		{"a=https://h:1,b=https://g:2,a=https://h:3", "a=https://h:1,a=https://h:3,b=https://g:2"},
		{"a=https://h:1,a=https://H:1", "a=https://h:1"},
	} {
		peers, err := hostenv.ParsePeers(c[0])
		if got := peers.String(); got != c[1] || err != nil {
			t.Errorf("%q: got %q, %v, want %q", c[0], got, err, c[1])
		}
	}
	for _, text := range []string{"a", "=https://h:1", "a=h:1", "a=https://", "a=https://h:1;b=https://h:2,c"} {
		if peers, err := hostenv.ParsePeers(text); err == nil {
			t.Errorf("%q was read as %v", text, peers)
		}
	}
}

func TestSameURLs(t *testing.T) {
	same := [][2]string{
		{"https://10.0.0.1:2380", "https://10.0.0.1:2380"}, {"https://H:1", "https://h:1"}, {"https://h.:1", "https://h:1"},
		{"https://[fd00::1]:1", "https://[fd00:0:0::1]:1"}, {"https://[::ffff:10.0.0.1]:1", "https://10.0.0.1:1"}, {"https://h:1/", "https://h:1"},
	}
	for _, pair := range same {
		if !hostenv.SameURLs(pair[:1], pair[1:]) {
			t.Errorf("%q is not %q", pair[0], pair[1])
		}
	}
	for _, pair := range [][2]string{
		{"https://10.0.0.1:2380", "https://10.0.0.10:2380"}, {"https://h:1", "https://h:2"}, {"http://h:1", "https://h:1"},
	} {
		if hostenv.SameURLs(pair[:1], pair[1:]) {
			t.Errorf("%q is %q", pair[0], pair[1])
		}
	}
	if hostenv.SameURLs([]string{"https://h:1"}, []string{"https://h:1", "https://h:2"}) {
		t.Error("a part is the whole")
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                               `ETCD_INITIAL_CLUSTER_STATE is ""; it is existing or new`,
		"ETCD_INITIAL_CLUSTER_STATE=old": `ETCD_INITIAL_CLUSTER_STATE is "old"; it is existing or new`,
		"ETCD_INITIAL_CLUSTER_STATE=new\nETCD_INITIAL_CLUSTER=x":                    `ETCD_INITIAL_CLUSTER: "x" is not <key>=<URL>, such as master-0=https://10.0.0.1:2380`,
		"ETCD_INITIAL_CLUSTER_STATE=existing\nETCD_MEMBER_IDS=master-0=https://h:1": `ETCD_MEMBER_IDS: "master-0" is not an etcd member ID in hex, such as 8e9e05c52164694d`,
	} {
		_, err := hostenv.Parse(text)
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestRendered: whatever the ring, every Node's environment lists the members that etcd lists and no
// other ones, reads back as it was written, and names each member once, the Node's own as it will call itself.
func TestRendered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &quorum.Snapshot{Ring: quorum.Ring{Known: true}}
		hosts := rapid.IntRange(1, 5).Draw(t, "hosts")
		names := rapid.SampledFrom([]string{"", "a", "b", "node-0", "x,y", "x=y"})
		for i := range hosts {
			address := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			s.Nodes = append(s.Nodes, quorum.Node{Name: fmt.Sprintf("node-%d", i), Addresses: []netip.Addr{address}})
			if rapid.Bool().Draw(t, "member") || i == 0 {
				m := quorum.Member{
					ID: quorum.MemberID(hosts-i) << 40, Name: names.Draw(t, "name"), Learner: i > 0 && rapid.Bool().Draw(t, "learner"),
					PeerURLs: []string{fmt.Sprintf("https://%s:2380", address)},
				}
				if rapid.Bool().Draw(t, "second URL") {
					m.PeerURLs = append(m.PeerURLs, fmt.Sprintf("https://h%d:2380", i))
				}
				s.Ring.Members = append(s.Ring.Members, m)
			}
		}
		environments, err := hostenv.Environments(quorum.NewJoin(s))
		if err != nil || len(environments) != hosts {
			t.Fatalf("%d environments, %v", len(environments), err)
		}
		for node, e := range environments {
			read, err := hostenv.Parse(e.Text())
			read.Why = e.Why // a comment in the text
			if err != nil {
				t.Fatalf("%s: %v\n%s", node, err, e.Text())
			}
			if diff := cmp.Diff(e, read, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s does not read back:\n%s", node, diff)
			}
			if len(e.Members) != len(s.Ring.Members) {
				t.Fatalf("%s: %d members, etcd lists %d", node, len(e.Members), len(s.Ring.Members))
			}
			for key, urls := range e.Members {
				id, err := quorum.ParseMemberID(key)
				if m := s.Ring.Member(id); err != nil || m == nil || !hostenv.SameURLs(m.PeerURLs, urls) {
					t.Fatalf("%s: etcd does not list %v", node, key)
				}
			}
			if (len(e.InitialCluster) == 0) == (e.Why == "") {
				t.Fatalf("%s: a cluster and why there is none, or neither:\n%s", node, e.Text())
			}
			if len(e.InitialCluster) != 0 && len(e.InitialCluster) != len(e.Members) {
				t.Fatalf("%s: two members share a name:\n%s", node, e.Text())
			}
		}
		endpoints, err := hostenv.Endpoints(quorum.NewJoin(s))
		if err == nil {
			for _, e := range endpoints {
				if m := s.Ring.Member(e.ID); m == nil || m.Learner {
					t.Fatalf("endpoint %+v is no voter", e)
				}
			}
		}
	})
}
