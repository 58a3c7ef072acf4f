package quorum

// Owner is one of a Machine's owner references.
type Owner struct {
	Group, Kind, Name, UID string
	Controller             bool
}
