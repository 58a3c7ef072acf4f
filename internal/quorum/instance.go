package quorum

import (
	"slices"
	"strings"
)

// InstanceAnnotations are the annotations by which providers find the instance of a Machine that has
// no provider ID, and in older releases of any: each with what comes before its value in a provider ID
// of the same instance.
var InstanceAnnotations = [...]struct{ Key, Prefix string }{
	{"metal3.io/BareMetalHost", baremetal},    // machine-api-provider-baremetal: <namespace>/<name> of the host
	{"openstack-resourceId", "openstack:///"}, // machine-api-provider-openstack: the server's ID
}

// InstanceValues are the values of InstanceAnnotations, "" without the annotation.
type InstanceValues [len(InstanceAnnotations)]string

const baremetal = "baremetalhost:///"

// InstanceField is a field of a Machine that names its instance.
type InstanceField struct {
	Name, Value string
	instance    string // the same for all fields that name one instance
}

// Same says whether both fields name one instance.
func (f InstanceField) Same(o InstanceField) bool { return f.instance == o.instance }

// InstanceFields are those that name one.
func (m *Machine) InstanceFields() []InstanceField {
	var fields []InstanceField
	if m.ProviderID != "" {
		fields = append(fields, InstanceField{"spec.providerID", m.ProviderID, instanceOf(m.ProviderID)})
	}
	for i, value := range m.Instance {
		if value != "" {
			fields = append(fields, InstanceField{"annotation " + InstanceAnnotations[i].Key, value, instanceOf(InstanceAnnotations[i].Prefix + value)})
		}
	}
	return fields
}

// InstanceName is what says that the Machine has an instance, for people; "" if nothing does.
func (m *Machine) InstanceName() string {
	switch fields := m.InstanceFields(); {
	case len(fields) > 0:
		return fields[0].Value
	case m.NodeName != "":
		return "that of Node " + m.NodeName
	}
	return ""
}

// instanceOf is a provider ID without what may be left out of it: bare metal's has the host's UID
// behind its namespace and name, or has not.
func instanceOf(providerID string) string {
	host, ok := strings.CutPrefix(providerID, baremetal)
	if !ok {
		return providerID
	}
	if parts := strings.SplitN(host, "/", 3); len(parts) == 3 {
		host = parts[0] + "/" + parts[1]
	}
	return baremetal + host
}

// DeletionKeys name what the deletion of a Machine takes away: its instance, which the machine controller terminates, and its
// Node, which it drains and deletes. A Machine without a Node may be given one by the node link, which goes by the provider ID and then by the
// addresses; for one that has a Node its other addresses say nothing, since virtual ones move from Node to Node. n is the Machine's
// Node, nil where it has none or it is not known.
func (m *Machine) DeletionKeys(n *Node) []string {
	keys, addresses := m.InstanceKeys(), m.Addresses
	if m.NodeName != "" {
		keys = append(keys, nodeKey(m.NodeName))
	}
	if n != nil {
		addresses = slices.Concat(addresses, n.Addresses)
		if n.ProviderID != "" {
			keys = append(keys, "instance "+instanceOf(n.ProviderID))
		}
	}
	for _, a := range addresses {
		if a.IsLinkLocalUnicast() { // the same on every host
			continue
		}
		if m.NodeName == "" {
			keys = append(keys, "address "+a.Unmap().String())
		}
		keys = append(keys, "etcd's address "+a.Unmap().String())
	}
	return keys
}

// hostKeys name the host of a control-plane Machine, in the form of DeletionKeys.
func (m *Machine) hostKeys() []string {
	keys := m.InstanceKeys()
	if m.NodeName != "" {
		keys = append(keys, nodeKey(m.NodeName))
	}
	for _, a := range m.Addresses {
		keys = append(keys, "address "+a.Unmap().String())
	}
	for _, a := range m.OwnEvidence().Addresses { // also of a Machine that cannot be read
		keys = append(keys, "etcd's address "+a.Unmap().String())
	}
	return keys
}

func nodeKey(name string) string { return "Node " + name }

// HostKeys are keys, as Reaches has them, of all that the control-plane Machines stand for.
func (s *Snapshot) HostKeys() []string {
	var keys []string
	for i := range s.Machines {
		keys = append(keys, s.Machines[i].hostKeys()...)
		if n := nodeOf(s, &s.Machines[i]); n != nil {
			keys = append(keys, nodeKey(n.Name))
		}
	}
	return keys
}

// InstanceKeys are keys, as Reaches has them, of the instance that a Machine names.
func (m *Machine) InstanceKeys() (keys []string) {
	for _, f := range m.InstanceFields() {
		keys = append(keys, "instance "+f.instance)
	}
	return keys
}

// LostWith returns a control-plane Machine whose host would be lost if m were deleted, and the key that both share; nil for none.
func (s *Snapshot) LostWith(m *Machine) (goes *Machine, by string) {
	var own *Node
	if m.NodeName != "" {
		own = s.Node(m.NodeName)
	}
	keys := m.DeletionKeys(own)
	if m.Guarded() { // its Node and its addresses the join knows
		keys = m.InstanceKeys()
	}
	for i := range s.Machines {
		other := &s.Machines[i]
		if other.Name == m.Name {
			continue
		}
		for _, key := range other.hostKeys() {
			if slices.Contains(keys, key) {
				return other, key
			}
		}
	}
	return nil, ""
}

// FailedClaim says whether a Machine names an instance that it is not known to have: the machine controller took it to have failed, and no
// member is on record. Neither is anybody's to write but the Machine API's and Holdfast's.
func (m *Machine) FailedClaim() bool { return m.Phase == "Failed" && m.EvidenceRaw == "" }

// Twin is another control-plane Machine that names the same instance, and is not taken to have failed; nil without one.
func (s *Snapshot) Twin(m *Machine) *Machine {
	keys := m.InstanceKeys()
	for i := range s.Machines {
		other := &s.Machines[i]
		if other.Name != m.Name && !other.FailedClaim() && slices.ContainsFunc(other.InstanceKeys(), func(key string) bool { return slices.Contains(keys, key) }) {
			return other
		}
	}
	return nil
}

// InstanceSettled says whether a control-plane Machine has its instance for certain: it has a Node, or is known to host a member.
// Neither is anybody's to write but the Machine API's and Holdfast's.
func (m *Machine) InstanceSettled() bool {
	return m.ControlPlane() && (m.NodeName != "" || len(m.OwnEvidence().MemberIDs) > 0)
}
