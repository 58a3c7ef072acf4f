// Package scenario holds end-to-end tests: whole replacements, with and without faults, on a sandbox
// of real parts. In most of them a history checks what must hold at every moment: how many voters there
// are, that no hook returns to a deleting Machine, that no member votes whose Machine is unhooked.
package scenario
