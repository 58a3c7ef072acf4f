package verify

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestTranscripts decides on facts that are written down: what is expected, what etcd lists, whose
// data are there.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			decision := Decide(facts(t, d.Input))
			out := fmt.Sprintf("%s: %s\n", word(decision.Verdict), strings.ReplaceAll(decision.Why, "\n", "\n  "))
			if decision.Advice != "" {
				out += "  " + decision.Advice + "\n"
			}
			return out
		})
	})
}

func word(v Verdict) string {
	return [...]string{VerdictStart: "start", VerdictFresh: "fresh", VerdictArchive: "archive", VerdictWait: "wait", VerdictRefuse: "refuse", VerdictOutdated: "outdated", VerdictCompare: "compare"}[v]
}

// facts reads lines such as
//
//	host https://10.0.0.1:2380
//	expected 1=https://10.0.0.1:2380
//	cluster a=https://10.0.0.1:2380
//	new
//	member 1 a https://10.0.0.1:2380 learner started healthy
//	unknown no answer in time
//	silent 6s
//	disk 1 | 1@d | none | no-log | garbled
//	position term 2 commit 8 index 8 revision 5
//	unread
//	running 2 leader 2 cluster c term 3 commit 40 revision 20
//	differs at revision 5
//	nobody runs
//	stranger a certificate is of another authority
//
// Data are of cluster c, and stand at the position above; the leader of a ring that is known is the member
// that runs above. A line says otherwise.
func facts(t *testing.T, text string) Facts {
	f := Facts{
		PeerURL: "https://10.0.0.1:2380", Disk: Disk{Holding: HoldingNothing}, QuorumWait: 5 * time.Second,
		Environment: hostenv.Environment{State: hostenv.StateExisting}, Ring: quorum.Ring{Known: true},
		Position: &Position{Term: 2, Commit: 8, Index: 8, Revision: 5},
	}
	told := false // who runs
	peers := func(text string) hostenv.Peers {
		p, err := hostenv.ParsePeers(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	id := func(text string) quorum.MemberID {
		id, err := quorum.ParseMemberID(text)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	numbers := func(words []string, into map[string]func(uint64)) {
		for i := 0; i+1 < len(words); i += 2 {
			set, base := into[words[i]], 10
			if words[i] == "leader" || words[i] == "cluster" {
				base = 16
			}
			n, err := strconv.ParseUint(words[i+1], base, 64)
			if err != nil || set == nil {
				t.Fatalf("what is %q?", words)
			}
			set(n)
		}
	}
	for line := range strings.Lines(text) {
		word := strings.Fields(line)
		switch word[0] {
		case "host":
			f.PeerURL = word[1]
		case "new":
			f.Environment.State = hostenv.StateNew
		case "expected":
			f.Environment.Members = peers(word[1])
		case "cluster":
			f.Environment.InitialCluster = peers(word[1])
		case "unknown":
			f.Ring.Known, f.Ring.Why = false, strings.Join(word[1:], " ")
		case "silent":
			var err error
			if f.Silent, err = time.ParseDuration(word[1]); err != nil {
				t.Fatal(err)
			}
		case "member":
			m := quorum.Member{ID: id(word[1]), Name: strings.TrimPrefix(word[2], "-"), PeerURLs: []string{word[3]}}
			for _, w := range word[4:] {
				switch w {
				case "learner":
					m.Learner = true
				case "healthy":
					m.Healthy = true
				case "started":
					m.ClientURLs = []string{"https://client"}
				}
			}
			f.Ring.Members = append(f.Ring.Members, m)
		case "disk":
			switch word[1] {
			case "none":
			case "no-log":
				f.Disk = Disk{Holding: HoldingNoLog}
			case "garbled":
				f.Disk = Disk{Holding: HoldingGarbled, Why: "0.wal does not begin with the metadata of a write-ahead log"}
			default:
				member, cluster, other := strings.Cut(word[1], "@")
				f.Disk = Disk{Holding: HoldingData, Member: id(member), Cluster: 0xc}
				if other {
					f.Disk.Cluster = uint64(id(cluster))
				}
			}
		case "position":
			p := f.Position
			numbers(word[1:], map[string]func(uint64){
				"term": func(n uint64) { p.Term = n }, "commit": func(n uint64) { p.Commit = n },
				"index": func(n uint64) { p.Index = n }, "revision": func(n uint64) { p.Revision = int64(n) },
			})
		case "unread":
			f.Position = nil
		case "running":
			r := Running{Status: etcd.Status{Member: id(word[1])}}
			numbers(word[2:], map[string]func(uint64){
				"leader": func(n uint64) { r.Leader = quorum.MemberID(n) }, "cluster": func(n uint64) { r.Cluster = n },
				"term": func(n uint64) { r.Term = n }, "commit": func(n uint64) { r.Commit = n }, "revision": func(n uint64) { r.Revision = int64(n) },
			})
			f.Running, told = append(f.Running, r), true
		case "differs":
			f.Running[len(f.Running)-1].Differs = strings.Join(word, " ")
		case "nobody":
			told = true
		case "stranger":
			f.Stranger = strings.Join(word[1:], " ")
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	if f.Ring.Known && !told {
		f.Running = []Running{{Status: etcd.Status{Member: 2, Leader: 2, Cluster: 0xc, Term: 3, Commit: 40, Revision: 20}}}
	}
	return f
}
