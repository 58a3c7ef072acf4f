// Package install installs Holdfast as people do: the rendered manifests of deploy are applied to a sandbox,
// whose controllers and scheduler make pods of them, and whose hosts run these. Then it is used, restarted
// under load, upgraded and downgraded, changed from one mode to the other and taken off again, and its rights are
// held against what it asked for. What docs/install.md says of upgrades and of uninstalling is done as it is said there.
package install
