// Package waysin tries the ways to take a hooked control-plane Machine away through the Kubernetes
// API, other than by the escape hatch, on a sandbox of real parts, with machine-api-operator's own
// webhooks beside Holdfast's. Each row of its table is sent as a dry run and then for real; afterwards
// what the guard protects must be as it was. docs/proof/attacks.md has the same table.
package waysin
