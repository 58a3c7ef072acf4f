package verify

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Facts are all that decides whether etcd may start.
type Facts struct {
	Environment membership.Environment
	PeerURL     string // this host's
	Ring        quorum.Ring
	Disk        Disk

	Silent     time.Duration // for how long etcd has given no linearizable answer
	QuorumWait time.Duration // how long that must last before a member with its own data starts all the same
}

// Verdict is what to do.
type Verdict uint8

const (
	Start   Verdict = 1 + iota // on the data that are here
	Fresh                      // without data, as a new member
	Archive                    // put the older member's data aside, then Fresh
	Wait                       // and look again
	Refuse                     // looking again changes nothing
)

// Decision is a verdict and why, in sentences for people.
type Decision struct {
	Verdict Verdict
	Why     string
	Advice  string // of Refuse
}

// Decide says whether etcd may start on this host, and how. It is pure.
func Decide(f Facts) Decision {
	if f.Environment.State == membership.Existing && len(f.Environment.Members) == 0 {
		return Decision{
			Refuse, fmt.Sprintf("%s is empty, so there is nothing to compare etcd's members with.", membership.MemberIDsVariable),
			"Set it from this Node's key in ConfigMap etcd-membership.",
		}
	}
	if !f.Ring.Known {
		return unknown(f)
	}
	me := at(&f.Ring, f.PeerURL)
	if me == nil {
		return absent(f)
	}
	if differ := differences(f.Environment, &f.Ring); len(differ) > 0 {
		return Decision{
			Refuse, strings.Join(differ, "\n"),
			"The environment is of another revision of etcd's membership. Start with what this Node's key in ConfigMap etcd-membership says now.",
		}
	}
	return listed(f, me)
}

// unknown decides without a member list.
func unknown(f Facts) Decision {
	silence := fmt.Sprintf("etcd's members are not known (%s)", f.Ring.Why)
	switch f.Disk.Holding {
	case Data:
		own := membership.FormatID(f.Disk.Member)
		if f.Environment.State != membership.New && expected(f.Environment, own) == nil {
			return Decision{Wait, fmt.Sprintf("%s, and the data here are those of member %s, which is not expected. If they were restored from a snapshot, %s must name it.", silence, own, membership.MemberIDsVariable), ""}
		}
		// Nobody else can answer in a ring of one.
		if len(f.Environment.Members) != 1 && f.Silent < f.QuorumWait {
			return Decision{Wait, fmt.Sprintf("%s; if that lasts for %v, member %s starts on its own data.", silence, f.QuorumWait, own), ""}
		}
		return Decision{Start, fmt.Sprintf("%s, and without its members up the ring cannot answer. Member %s is expected, and its own data are here.", silence, own), ""}
	case Nothing:
		if f.Environment.State == membership.New && membership.ByURL(f.Environment.InitialCluster, f.PeerURL) != nil {
			return Decision{Fresh, fmt.Sprintf("The ring is new, and this host (%s) is among its first members.", f.PeerURL), ""}
		}
	case NoLog, Garbled:
	}
	return Decision{Wait, silence + ", and there are no data of an expected member here.", ""}
}

// absent decides for a host that etcd lists no member at.
func absent(f Facts) Decision {
	why := fmt.Sprintf("etcd lists no member at %s yet; it lists %s.", f.PeerURL, describe(&f.Ring))
	if f.Disk.Holding != Data {
		return Decision{Wait, why, ""}
	}
	if m := f.Ring.Member(f.Disk.Member); m != nil {
		return Decision{Wait, fmt.Sprintf("The data here are those of %s, which etcd lists at %s, not at %s: its address changed. etcdctl member update %x --peer-urls=%s says so to etcd.",
			m, strings.Join(m.PeerURLs, ", "), f.PeerURL, m.ID, f.PeerURL), ""}
	}
	return Decision{Wait, fmt.Sprintf("%s The data here are those of member %x, which was removed.", why, f.Disk.Member), ""}
}

// listed decides for a host whose member etcd lists as expected.
func listed(f Facts, me *quorum.Member) Decision {
	if f.Disk.Holding == Data && f.Disk.Member == me.ID {
		return Decision{Start, fmt.Sprintf("etcd lists %s at %s as expected, and its own data are here.", me, f.PeerURL), ""}
	}
	here := map[Holding]string{
		Nothing: "no data are here",
		Data:    fmt.Sprintf("the data here are those of member %x", f.Disk.Member),
		NoLog:   "the data here hold no write-ahead log",
		Garbled: fmt.Sprintf("the data here do not say whose they are (%s)", f.Disk.Why),
	}[f.Disk.Holding]
	// A member tells its client URLs when it has started; one of the ring's first has its name before.
	if len(me.ClientURLs) > 0 {
		return Decision{
			Refuse, fmt.Sprintf("etcd lists %s at %s, which has started before, but %s. Without its own data it would vote against what it promised.", me, f.PeerURL, here),
			fmt.Sprintf("Put its data back in place; if they are lost, remove the member (etcdctl member remove %x, or delete the Machine), and a new one is added in its place.", me.ID),
		}
	}
	if f.Disk.Holding == Garbled && !me.Learner {
		return Decision{
			Refuse, fmt.Sprintf("etcd lists %s at %s as a voter, so it may have voted already, and %s.", me, f.PeerURL, here),
			fmt.Sprintf("If the data cannot be mended, remove the member (etcdctl member remove %x), and a new one is added in its place.", me.ID),
		}
	}
	if own := membership.ByURL(f.Environment.InitialCluster, f.PeerURL); own == nil {
		return Decision{
			Refuse, fmt.Sprintf("%s does not name this host's peer URL %s, so a new member cannot find its place in the ring.", membership.InitialClusterVariable, f.PeerURL),
			"Start with what this Node's key in ConfigMap etcd-membership says now; a comment there says why if it names none.",
		}
	}
	if f.Disk.Holding == Nothing {
		return Decision{Fresh, fmt.Sprintf("etcd lists %s at %s as expected; it never started and begins without data.", me, f.PeerURL), ""}
	}
	return Decision{Archive, fmt.Sprintf("etcd lists %s at %s as expected; it never started, and %s.", me, f.PeerURL, here), ""}
}

// differences are where the environment and etcd disagree, one sentence each. In a ring that is new
// the IDs are not known beforehand, so its URLs are compared.
func differences(e membership.Environment, ring *quorum.Ring) []string {
	var out []string
	if e.State == membership.New {
		for _, p := range e.InitialCluster {
			for _, u := range p.URLs {
				if at(ring, u) == nil {
					out = append(out, fmt.Sprintf("Expected: %s at %s. etcd lists no member there.", p.Key, u))
				}
			}
		}
		for i := range ring.Members {
			for _, u := range ring.Members[i].PeerURLs {
				if membership.ByURL(e.InitialCluster, u) == nil {
					out = append(out, fmt.Sprintf("Not expected: etcd lists %s at %s.", &ring.Members[i], u))
				}
			}
		}
		return out
	}
	for _, p := range e.Members {
		id, err := membership.ParseID(p.Key)
		m := ring.Member(id)
		switch {
		case err != nil || m == nil:
			out = append(out, fmt.Sprintf("Expected: member %s at %s. etcd does not list it.", p.Key, strings.Join(p.URLs, ", ")))
		case !membership.SameURLs(p.URLs, m.PeerURLs):
			out = append(out, fmt.Sprintf("Expected: member %s at %s. etcd lists it at %s.", p.Key, strings.Join(p.URLs, ", "), strings.Join(m.PeerURLs, ", ")))
		}
	}
	for i := range ring.Members {
		if m := &ring.Members[i]; expected(e, membership.FormatID(m.ID)) == nil {
			out = append(out, fmt.Sprintf("Not expected: etcd lists %s at %s.", m, strings.Join(m.PeerURLs, ", ")))
		}
	}
	return out
}

// expected finds a member of the environment by its hex ID, nil without it.
func expected(e membership.Environment, id string) *membership.Peer {
	for i := range e.Members {
		if e.Members[i].Key == id {
			return &e.Members[i]
		}
	}
	return nil
}

// at finds the member at a peer URL, nil without it.
func at(ring *quorum.Ring, peerURL string) *quorum.Member {
	for i := range ring.Members {
		if membership.HasURL(ring.Members[i].PeerURLs, peerURL) {
			return &ring.Members[i]
		}
	}
	return nil
}

// describe lists the members with their peer URLs.
func describe(ring *quorum.Ring) string {
	var out []string
	for i := range ring.Members {
		out = append(out, fmt.Sprintf("%s at %s", &ring.Members[i], strings.Join(ring.Members[i].PeerURLs, ", ")))
	}
	return strings.Join(out, ", ")
}
