package verify

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/holdfast-dev/holdfast/internal/membership"
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
	return [...]string{Start: "start", Fresh: "fresh", Archive: "archive", Wait: "wait", Refuse: "refuse"}[v]
}

// facts reads lines such as
//
//	host https://10.0.0.1:2380
//	expected 1=https://10.0.0.1:2380
//	cluster a=https://10.0.0.1:2380
//	new
//	member 1 a https://10.0.0.1:2380 learner started
//	unknown no answer in time
//	silent 6s
//	disk 1 | none | no-log | garbled
func facts(t *testing.T, text string) Facts {
	f := Facts{
		PeerURL: "https://10.0.0.1:2380", Disk: Disk{Holding: Nothing}, QuorumWait: 5 * time.Second,
		Environment: membership.Environment{State: membership.Existing}, Ring: quorum.Ring{Known: true},
	}
	peers := func(text string) []membership.Peer {
		p, err := membership.ParsePeers(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	id := func(text string) uint64 {
		id, err := membership.ParseID(text)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for line := range strings.Lines(text) {
		word := strings.Fields(line)
		switch word[0] {
		case "host":
			f.PeerURL = word[1]
		case "new":
			f.Environment.State = membership.New
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
				case "started":
					m.ClientURLs = []string{"https://client"}
				}
			}
			f.Ring.Members = append(f.Ring.Members, m)
		case "disk":
			switch word[1] {
			case "none":
			case "no-log":
				f.Disk = Disk{Holding: NoLog}
			case "garbled":
				f.Disk = Disk{Holding: Garbled, Why: "0.wal does not begin with the metadata of a write-ahead log"}
			default:
				f.Disk = Disk{Holding: Data, Member: id(word[1])}
			}
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return f
}
