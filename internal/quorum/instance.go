package quorum

import "strings"

// InstanceAnnotations are the annotations by which providers find the instance of a Machine that has
// no provider ID, and in older releases of any: each with what comes before its value in a provider ID
// of the same instance.
var InstanceAnnotations = [...]struct{ Key, Prefix string }{
	{"metal3.io/BareMetalHost", baremetal},    // machine-api-provider-baremetal: <namespace>/<name> of the host
	{"openstack-resourceId", "openstack:///"}, // machine-api-provider-openstack: the server's ID
}

const baremetal = "baremetalhost:///"

// instanceField is a field of a Machine that names its instance.
type instanceField struct {
	name, value string
	instance    string // the same for all fields that name one instance
}

func (f instanceField) same(o instanceField) bool { return f.instance == o.instance }

// instanceFields are those that name one.
func (m *Machine) instanceFields() []instanceField {
	var fields []instanceField
	if m.ProviderID != "" {
		fields = append(fields, instanceField{"spec.providerID", m.ProviderID, instanceOf(m.ProviderID)})
	}
	for i, value := range m.Instance {
		if value != "" {
			fields = append(fields, instanceField{"annotation " + InstanceAnnotations[i].Key, value, instanceOf(InstanceAnnotations[i].Prefix + value)})
		}
	}
	return fields
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
