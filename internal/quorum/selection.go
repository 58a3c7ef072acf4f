package quorum

// Selection is what the selector of a MachineSet or a MachineHealthCheck meets.
type Selection struct {
	Machines []Machine // those of the control plane that it matches
	Total    int       // all that it matches, workers too
	Desired  int       // voters wanted, 0 when unknown
}
