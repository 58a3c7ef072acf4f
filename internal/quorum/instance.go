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

// InstanceField is a field of a Machine that names its instance, and by which its provider finds it.
type InstanceField struct{ Name, Value, key string }

// InstanceFields are those that name one. What the status names is not among them: only the Machine API writes that.
func (m *Machine) InstanceFields() []InstanceField {
	var fields []InstanceField
	if m.ProviderID != "" {
		fields = append(fields, InstanceField{"spec.providerID", m.ProviderID, instanceKey(m.ProviderID)})
	}
	for i, value := range m.Instance {
		if value != "" {
			fields = append(fields, InstanceField{"annotation " + InstanceAnnotations[i].Key, value, instanceKey(InstanceAnnotations[i].Prefix + value)})
		}
	}
	return fields
}

// SameInstance reports whether a name of an instance is the other one, or the other one with more behind it: bare metal's provider ID has the
// host's UID behind its name, or has not. Azure writes one name in upper and lower case, and no provider tells two
// instances apart by that.
func SameInstance(was, is string) bool {
	return strings.HasPrefix(strings.ToLower(is)+"/", strings.ToLower(was)+"/")
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

// instanceKey is what all names of an instance have in common: the last part of a provider ID is what status and annotation have alone. A bare
// metal host is known by its namespace and name.
func instanceKey(name string) string {
	name = strings.ToLower(name)
	if host, ok := strings.CutPrefix(name, baremetal); ok {
		if parts := strings.SplitN(host, "/", 3); len(parts) == 3 {
			host = parts[0] + "/" + parts[1]
		}
		return "instance " + host
	}
	if last := name[strings.LastIndex(name, "/")+1:]; last != "" {
		name = last
	}
	return "instance " + name
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
			keys = append(keys, instanceKey(n.ProviderID))
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

// hostKeys name the host of a control-plane Machine, in the form of DeletionKeys. n is its Node, nil if that is not known. A Node's own addresses are
// the host's; the Machine may also have those of networks that lend them to one host after the other.
func (m *Machine) hostKeys(n *Node) []string {
	keys, addresses := m.InstanceKeys(), m.Addresses
	if n != nil {
		keys = append(keys, nodeKey(n.Name))
		if len(n.Addresses) > 0 {
			addresses = n.Addresses
		}
	} else if m.NodeName != "" {
		keys = append(keys, nodeKey(m.NodeName))
	}
	for _, a := range addresses {
		keys = append(keys, "address "+a.Unmap().String())
	}
	for _, a := range m.OwnEvidence().Addresses { // also of a Machine that cannot be read
		keys = append(keys, "etcd's address "+a.Unmap().String())
	}
	return keys
}

// HostKeys are keys of the hosts of all control-plane Machines, in the form of DeletionKeys.
func (s *Snapshot) HostKeys() (keys []string) {
	for i := range s.Machines {
		keys = append(keys, s.Machines[i].hostKeys(nodeOf(s, &s.Machines[i]))...)
	}
	return keys
}

func nodeKey(name string) string { return "Node " + name }

// InstanceKeys are the keys of the instance that a Machine has by any of its names, in the form of DeletionKeys.
func (m *Machine) InstanceKeys() (keys []string) {
	for _, f := range m.InstanceFields() {
		keys = append(keys, f.key)
	}
	for _, name := range m.StatusInstances {
		keys = append(keys, instanceKey(name))
	}
	return keys
}

// LostWith returns a control-plane Machine whose host would be lost if m were deleted, and the key that both share; nil for none.
func (s *Snapshot) LostWith(m *Machine) (goes *Machine, by string) {
	for i := range s.Machines {
		if by := s.HostKeyShared(m, &s.Machines[i]); by != "" {
			return &s.Machines[i], by
		}
	}
	return nil, ""
}

// HostKeyShared is the key (a provider ID, say) that two Machines share, so that the deletion of m would terminate the host of the other one;
// "" if none.
func (s *Snapshot) HostKeyShared(m, other *Machine) string {
	keys := m.InstanceKeys()
	if !m.Guarded() { // else its Node and its addresses the join knows
		keys = m.DeletionKeys(s.Node(m.NodeName))
	}
	for _, key := range other.hostKeys(nodeOf(s, other)) {
		if other.Name != m.Name && slices.Contains(keys, key) {
			return key
		}
	}
	return ""
}
