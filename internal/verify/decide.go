package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Facts are all that decides whether etcd may start.
type Facts struct {
	Environment hostenv.Environment
	PeerURL     string // this host's
	Ring        quorum.Ring
	Disk        Disk

	// Position is where the data here stand; nil before anybody looked.
	Position *Position
	// Running are members that answer for themselves, the leader among them if the ring is known and the
	// leader answered.
	Running []Running
	// Stranger is why an endpoint that is not silent cannot be asked, "" if there is none.
	Stranger string

	Silent     time.Duration // for how long etcd has given no linearizable answer
	QuorumWait time.Duration // how long that must last before a member with its own data starts all the same
}

// me is the member that etcd lists at this host's peer URL, nil without one. Of several there (see [quorum.Ring.Twins]) it is the one whose
// data are here.
func (f *Facts) me() *quorum.Member {
	if own := f.Ring.Member(f.Disk.Member); f.Disk.Holding == HoldingData && own != nil && hostenv.HasURL(own.PeerURLs, f.PeerURL) {
		return own
	}
	return at(&f.Ring, f.PeerURL)
}

// Running is a member that answers for itself.
type Running struct {
	etcd.Status
	At string // client URL
	// Differs is what it holds otherwise than the data here at a revision that both have, "" for nothing.
	Differs string
}

// Verdict is what to do.
type Verdict uint8

const (
	VerdictStart    Verdict = 1 + iota // on the data that are here
	VerdictFresh                       // without data, as a new member
	VerdictArchive                     // put the older member's data aside, then VerdictFresh
	VerdictWait                        // and look again
	VerdictRefuse                      // do not start: waiting will not help
	VerdictOutdated                    // do not start: only a newer environment can help
	VerdictCompare                     // find out Running, and Position where the data are this member's; then decide again
)

// Decision is a verdict and why, in sentences for people.
type Decision struct {
	Verdict Verdict
	Why     string
	Advice  string // of VerdictRefuse and VerdictOutdated
}

func wait(format string, args ...any) Decision {
	return Decision{Verdict: VerdictWait, Why: fmt.Sprintf(format, args...)}
}

func refuse(advice, format string, args ...any) Decision {
	return Decision{VerdictRefuse, fmt.Sprintf(format, args...), advice}
}

const newest = "Start with what this Node's key in ConfigMap etcd-membership says now."

// Decide reports whether etcd may start on this host, and how. It is pure.
func Decide(f Facts) Decision {
	switch {
	case f.Environment.State == hostenv.StateExisting && len(f.Environment.Members) == 0:
		return Decision{
			VerdictOutdated, fmt.Sprintf("%s is empty, so there is nothing to compare etcd's members with.", hostenv.MemberIDsVariable),
			"Set it from this Node's key in ConfigMap etcd-membership.",
		}
	case f.Environment.State == hostenv.StateNew && len(f.Environment.Members) > 0:
		return Decision{VerdictOutdated, fmt.Sprintf("%s is new, and %s names members that the ring has already.", hostenv.StateVariable, hostenv.MemberIDsVariable), newest}
	case !f.Ring.Known:
		return unknown(f)
	}
	me := f.me()
	if me == nil {
		return absent(f)
	}
	// etcd with data does not read the environment, so one that is old keeps no member from its own data. A ring that is new has none.
	own := f.Environment.State == hostenv.StateExisting && f.Disk.Holding == HoldingData && f.Disk.Member == me.ID
	if differ := differences(f.Environment, &f.Ring); len(differ) > 0 && !own {
		return Decision{VerdictOutdated, strings.Join(differ, "\n"), "The environment is of another revision of etcd's membership. " + newest}
	}
	return listed(f, me)
}

// unknown decides without a member list.
func unknown(f Facts) Decision {
	silence := fmt.Sprintf("etcd's members are not known (%s)", f.Ring.Why)
	if f.Stranger != "" {
		return wait("%s, but etcd is not silent: %s. Without a member list a member starts only where no endpoint answers; look at --endpoints, --cacert, --cert and --key.", silence, f.Stranger)
	}
	switch f.Disk.Holding {
	case HoldingData:
		id := f.Disk.Member.Hex()
		if f.Environment.State == hostenv.StateExisting {
			switch own := f.Environment.Members[id]; {
			case own == nil:
				return wait("%s, and the data here are those of member %s, which is not expected. If they were restored from a snapshot, %s must name it.", silence, id, hostenv.MemberIDsVariable)
			case !hostenv.HasURL(own, f.PeerURL):
				return wait("%s, and the data here are those of member %s, which is expected at %s, not at this host's %s.", silence, id, strings.Join(own, ", "), f.PeerURL)
			}
		}
		// In a ring of one there is no other member to answer.
		if len(f.Environment.Members) != 1 && f.Silent < f.QuorumWait {
			return wait("%s; if that lasts for %v, member %s starts on its own data.", silence, f.QuorumWait, id)
		}
		return decideOnOwnData(f, fmt.Sprintf("%s, and without its members up the ring cannot answer. Member %s is expected, and its own data are here.", silence, id))
	case HoldingNothing:
		if f.Environment.State == hostenv.StateNew && f.Environment.InitialCluster.At(f.PeerURL) != "" {
			if len(f.Running) > 0 {
				return wait("%s, and member %x runs, so the ring is not new.", silence, f.Running[0].Member)
			}
			return Decision{VerdictFresh, fmt.Sprintf("The ring is new, and this host (%s) is among its first members.", f.PeerURL), ""}
		}
	case HoldingNoLog, HoldingGarbled:
		return wait("%s, and %s. If no member ever ran on this host, as after a first start of etcd that failed, move the data directory aside.", silence, here(f.Disk))
	}
	return wait("%s, and there are no data of an expected member here.", silence)
}

// here says what is on the disk.
func here(d Disk) string {
	return map[Holding]string{
		HoldingNothing: "no data are here",
		HoldingData:    fmt.Sprintf("the data here are those of member %x", d.Member),
		HoldingNoLog:   "the data here hold no write-ahead log in member/wal; if etcd has its log elsewhere, say where (--wal-dir)",
		HoldingGarbled: fmt.Sprintf("the data here do not say whose they are (%s)", d.Why),
	}[d.Holding]
}

// absent decides for a host that a ring that is known lists no member at.
func absent(f Facts) Decision {
	why := fmt.Sprintf("etcd lists no member at %s yet; it lists %s.", f.PeerURL, describe(&f.Ring))
	if f.Disk.Holding != HoldingData {
		return wait("%s", why)
	}
	if m := f.Ring.Member(f.Disk.Member); m != nil {
		why = fmt.Sprintf("The data here are those of %s, which etcd lists at %s, not at %s: its address changed.", m, strings.Join(m.PeerURLs, ", "), f.PeerURL)
		if m.Learner { // some versions of etcd forget that a member is a learner when it is updated
			return wait("%s In full mode Holdfast adds a learner anew after a while (--learner-stall-timeout). At once: %s", why, f.Ring.RemoveCommand(m))
		}
		return wait("%s If that is for good: etcdctl member update %x --peer-urls=%s", why, m.ID, f.PeerURL)
	}
	return wait("%s The data here are those of member %x, which was removed.", why, f.Disk.Member)
}

// listed decides for a host whose member etcd lists.
func listed(f Facts, me *quorum.Member) Decision {
	if f.Disk.Holding == HoldingData && f.Disk.Member == me.ID {
		why := fmt.Sprintf("etcd lists %s at %s, and its own data are here.", me, f.PeerURL)
		for _, twin := range f.Ring.Twins(me) {
			why += fmt.Sprintf(" It also lists %s there, which does not run: %s", twin, f.Ring.RemoveCommand(twin))
		}
		return decideOnOwnData(f, why)
	}
	if other := f.Ring.Member(f.Disk.Member); f.Disk.Holding == HoldingData && other != nil {
		return refuse("Give this host's peer URL as --peer-url and the data directory of its member as --data-dir.",
			"The data here are those of %s, which etcd lists at %s. At this host's %s it lists %s.", other, strings.Join(other.PeerURLs, ", "), f.PeerURL, me)
	}
	for i := range f.Ring.Members {
		if why := quorum.NewJoin(&quorum.Snapshot{Ring: f.Ring}).ListedTwice(&f.Ring.Members[i]); why != "" {
			return wait("%s.", why)
		}
	}
	here := here(f.Disk)
	// A member publishes its client URLs when it has started; one of the ring's first has its name before.
	if len(me.ClientURLs) > 0 {
		return refuse(fmt.Sprintf("Put its data back in place. If they are lost, delete the Machine, or remove the member, and a new one is added in its place: %s", f.Ring.RemoveCommand(me)),
			"etcd lists %s at %s, which has started before, but %s. Without its own data it would vote against what it promised.", me, f.PeerURL, here)
	}
	// A log that is gone says no more than one that is garbled. A voter without a name may have voted too: members are added as learners and have
	// a name before they are promoted, and an upgrade from etcd 3.5 may lose it (etcd issue 19557).
	nameless := me.Name == "" && f.Environment.State == hostenv.StateExisting
	if (f.Disk.Holding == HoldingGarbled || f.Disk.Holding == HoldingNoLog || nameless) && !me.Learner {
		return refuse(fmt.Sprintf("If its data cannot be put back or mended, remove the member, and a new one is added in its place: %s", f.Ring.RemoveCommand(me)),
			"etcd lists %s at %s as a voter, so it may have voted already, and %s.", me, f.PeerURL, here)
	}
	if wrong := misplaced(f, me); wrong != "" {
		return Decision{VerdictOutdated, wrong, newest + " A comment there says why if it names no members."}
	}
	if f.Environment.State == hostenv.StateNew && leader(f) == nil {
		return Decision{VerdictCompare, "etcd's leader does not answer, so that it is not known whether the ring is new.", ""}
	}
	if f.Disk.Holding == HoldingNothing {
		return Decision{VerdictFresh, fmt.Sprintf("etcd lists %s at %s as expected; it never started and begins without data.", me, f.PeerURL), ""}
	}
	return Decision{VerdictArchive, fmt.Sprintf("etcd lists %s at %s as expected; it never started, and %s.", me, f.PeerURL, here), ""}
}

// misplaced says why a member that begins without data would not find its place in the ring by the
// environment, "" if it would.
func misplaced(f Facts, me *quorum.Member) string {
	cluster := f.Environment.InitialCluster
	own := cluster.At(f.PeerURL)
	if own == "" {
		return fmt.Sprintf("%s does not name this host's peer URL %s, so a new member cannot find its place in the ring.", hostenv.InitialClusterVariable, f.PeerURL)
	}
	// The ring's first members are listed by name before they start; one that was added is not. And they make up the
	// log's first entries, the members, by themselves: after those each revision takes one. In a ring that was
	// restored it does not, and who begins as new there never gets what the snapshot held.
	if f.Environment.State == hostenv.StateNew {
		if me.Name == "" {
			return fmt.Sprintf("%s is new, and %s was added to a ring that runs, or etcd was restored from a snapshot.", hostenv.StateVariable, me)
		}
		if l := leader(f); l != nil && int64(l.Commit) < l.Revision+int64(len(cluster))-1 {
			return fmt.Sprintf("%s is new, and etcd, at revision %d by index %d, was restored from a snapshot.", hostenv.StateVariable, l.Revision, l.Commit)
		}
	}
	for i := range f.Ring.Members {
		m := &f.Ring.Members[i]
		if !slices.ContainsFunc(slices.Collect(maps.Values(cluster)), func(urls []string) bool { return hostenv.SameURLs(urls, m.PeerURLs) }) {
			return fmt.Sprintf("%s does not name %s at %s.", hostenv.InitialClusterVariable, m, strings.Join(m.PeerURLs, ", "))
		}
		if m.ID != me.ID && m.Name == own && m.Healthy { // one that is dead may have had this host before
			return fmt.Sprintf("%s calls this host %s, and etcd lists %s at %s.", hostenv.InitialClusterVariable, own, m, strings.Join(m.PeerURLs, ", "))
		}
	}
	if len(cluster) != len(f.Ring.Members) {
		return fmt.Sprintf("%s names %d members, and etcd lists %d.", hostenv.InitialClusterVariable, len(cluster), len(f.Ring.Members))
	}
	return ""
}

// differences are where the environment and etcd disagree, one sentence each. In a ring that is new
// the IDs are not known beforehand, so its URLs are compared.
func differences(e hostenv.Environment, ring *quorum.Ring) []string {
	var out []string
	if e.State == hostenv.StateNew {
		for _, name := range slices.Sorted(maps.Keys(e.InitialCluster)) {
			for _, u := range e.InitialCluster[name] {
				if at(ring, u) == nil {
					out = append(out, fmt.Sprintf("Expected: %s at %s. etcd lists no member there.", name, u))
				}
			}
		}
		for i := range ring.Members {
			for _, u := range ring.Members[i].PeerURLs {
				if e.InitialCluster.At(u) == "" {
					out = append(out, fmt.Sprintf("Not expected: etcd lists %s at %s.", &ring.Members[i], u))
				}
			}
		}
		return out
	}
	for _, key := range slices.Sorted(maps.Keys(e.Members)) {
		urls := e.Members[key]
		id, err := quorum.ParseMemberID(key)
		m := ring.Member(id)
		switch {
		case err != nil || m == nil:
			out = append(out, fmt.Sprintf("Expected: member %s at %s. etcd does not list it.", key, strings.Join(urls, ", ")))
		case !hostenv.SameURLs(urls, m.PeerURLs):
			out = append(out, fmt.Sprintf("Expected: member %s at %s. etcd lists it at %s.", key, strings.Join(urls, ", "), strings.Join(m.PeerURLs, ", ")))
		}
	}
	for i := range ring.Members {
		if m := &ring.Members[i]; e.Members[m.ID.Hex()] == nil {
			out = append(out, fmt.Sprintf("Not expected: etcd lists %s at %s.", m, strings.Join(m.PeerURLs, ", ")))
		}
	}
	return out
}

// at finds the member at a peer URL, nil without it.
func at(ring *quorum.Ring, peerURL string) *quorum.Member {
	for i := range ring.Members {
		if hostenv.HasURL(ring.Members[i].PeerURLs, peerURL) {
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
