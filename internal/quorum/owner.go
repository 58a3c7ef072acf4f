package quorum

// Owner is one of a Machine's owner references.
type Owner struct {
	Group      string `json:"group,omitzero"`
	Kind       string `json:"kind,omitzero"`
	Name       string `json:"name,omitzero"`
	UID        string `json:"uid,omitzero"`
	Controller bool   `json:"controller,omitzero"`
}

// Controller is the owner that controls a Machine, nil without one.
func (m *Machine) Controller() *Owner {
	for i := range m.Owners {
		if m.Owners[i].Controller {
			return &m.Owners[i]
		}
	}
	return nil
}
