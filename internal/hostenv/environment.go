package hostenv

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Where the environments and the endpoints are published by default.
const (
	Namespace     = "openshift-etcd"
	Name          = "etcd-membership" // ConfigMap: Node name -> environment
	EndpointsName = "etcd-endpoints"  // ConfigMap: hex member ID -> address
	ServiceName   = "etcd"            // the Service whose EndpointSlices are kept
)

// The variables of an environment. The first two are etcd's own.
const (
	InitialClusterVariable = "ETCD_INITIAL_CLUSTER"
	StateVariable          = "ETCD_INITIAL_CLUSTER_STATE"
	MemberIDsVariable      = "ETCD_MEMBER_IDS"
)

// State is ETCD_INITIAL_CLUSTER_STATE.
type State string

const (
	StateNew      State = "new"      // the ring has no member yet
	StateExisting State = "existing" // a new member joins the ring that lists it
)

// Environment is what the etcd of one Node starts with.
type Environment struct {
	InitialCluster Peers // by name; none where nothing may start
	State          State
	Members        Peers  // by hex ID; none in a ring that is new
	Why            string // why there is no InitialCluster, for people
}

// Text is the environment as lines of an environment file.
func (e Environment) Text() string {
	text := &strings.Builder{}
	if e.Why != "" {
		fmt.Fprintf(text, "# %s\n", e.Why)
	}
	if len(e.InitialCluster) > 0 {
		fmt.Fprintf(text, "%s=%s\n", InitialClusterVariable, e.InitialCluster)
	}
	fmt.Fprintf(text, "%s=%s\n", StateVariable, e.State)
	if len(e.Members) > 0 {
		fmt.Fprintf(text, "%s=%s\n", MemberIDsVariable, e.Members)
	}
	return text.String()
}

// Parse reads what Text wrote, but for the comment. Other variables mean nothing to it.
func Parse(text string) (Environment, error) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = value
		}
	}
	return FromVariables(func(name string) string { return values[name] })
}

// FromVariables makes an environment of its variables; lookup gives a variable's value, "" without it.
func FromVariables(lookup func(name string) string) (e Environment, err error) {
	e.State = State(lookup(StateVariable))
	if e.State != StateNew && e.State != StateExisting {
		return e, fmt.Errorf("%s is %q; it is %s or %s", StateVariable, e.State, StateExisting, StateNew)
	}
	if e.InitialCluster, err = ParsePeers(lookup(InitialClusterVariable)); err != nil {
		return e, fmt.Errorf("%s: %w", InitialClusterVariable, err)
	}
	members, err := ParsePeers(lookup(MemberIDsVariable))
	if err != nil {
		return e, fmt.Errorf("%s: %w", MemberIDsVariable, err)
	}
	e.Members = Peers{}
	for key, urls := range members {
		id, err := quorum.ParseMemberID(strings.TrimPrefix(key, "0x"))
		if err != nil {
			return e, fmt.Errorf("%s: %w", MemberIDsVariable, err)
		}
		e.Members.add(id.Hex(), urls...)
	}
	return e, nil
}

// Environments renders the environment of every control-plane Node of a Snapshot, by the Node's name.
// A ring that is not known has none: the error says why, and what was rendered before stays.
func Environments(join *quorum.Join) (map[string]Environment, error) {
	s := join.Snapshot()
	if err := known(&s.Ring); err != nil {
		return nil, err
	}
	nodes := make([]string, len(s.Ring.Members)) // by member: the name of its Node, "" if that is not sure
	for k := range nodes {
		if n := nodeOf(join, &s.Ring.Members[k]); n != nil {
			nodes[k] = n.Name
		}
	}
	members := Peers{}
	for i := range s.Ring.Members {
		members[s.Ring.Members[i].ID.Hex()] = slices.Sorted(slices.Values(s.Ring.Members[i].PeerURLs))
	}

	out := make(map[string]Environment, len(s.Nodes))
	for i := range s.Nodes {
		node := s.Nodes[i].Name
		e := Environment{State: StateExisting, Members: members}
		var here []int
		for k := range nodes {
			if nodes[k] == node {
				here = append(here, k)
			}
		}
		switch {
		case len(here) == 0:
			e.Why = fmt.Sprintf("etcd lists no member on Node %s, so none starts there.", node)
		case slices.ContainsFunc(here, func(k int) bool { return !SameURLs(s.Ring.Members[k].PeerURLs, s.Ring.Members[here[0]].PeerURLs) }):
			e.Why = fmt.Sprintf("etcd lists %d members on Node %s, so it is not known which one starts there.", len(here), node)
		default:
			runs := slices.IndexFunc(here, func(k int) bool { return join.Runs(&s.Ring.Members[k]) })
			e.InitialCluster = cluster(s.Ring.Members, nodes, here[max(0, runs)])
		}
		out[node] = e
	}
	return out, nil
}

// cluster names every member, for the one at index own to start with. etcd takes each URL once, and its names are compared with nothing
// but the own one: of several members at one URL any will do.
func cluster(members []quorum.Member, nodes []string, own int) Peers {
	name := func(k int) string {
		for _, name := range []string{members[k].Name, nodes[k]} {
			if name != "" && !strings.ContainsAny(name, ",=") {
				return name
			}
		}
		return members[k].ID.Hex()
	}
	peers := Peers{name(own): slices.Sorted(slices.Values(members[own].PeerURLs))}
	for k := range members {
		if k == own || slices.ContainsFunc(members[k].PeerURLs, func(u string) bool { return peers.At(u) != "" }) {
			continue
		}
		key := name(k)
		if peers[key] != nil {
			key += "-" + members[k].ID.Hex()
		}
		peers[key] = slices.Sorted(slices.Values(members[k].PeerURLs))
	}
	return peers
}

// nodeOf is the Node that a member runs on, nil if that is not one Node.
func nodeOf(join *quorum.Join, member *quorum.Member) *quorum.Node {
	host := join.Host(member)
	if m := host.Machine(); m != nil {
		return join.Node(m)
	}
	if len(host.Machines) == 0 && len(host.Nodes) == 1 {
		return host.Nodes[0]
	}
	return nil
}

func known(r *quorum.Ring) error {
	switch {
	case !r.Known:
		return fmt.Errorf("etcd's member list is not known: %s", r.Why)
	case len(r.Members) == 0:
		return errors.New("etcd's member list is empty, which cannot be")
	}
	return nil
}
