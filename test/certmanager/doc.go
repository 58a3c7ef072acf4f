// Package certmanager runs cert-manager's own controllers and its CA injector, as a library, against a
// sandbox on which the overlay for cert-manager is installed: it is issued, injected, and renewed under
// load. The binaries' modules (cmd/controller, cmd/cainjector) are not in cert-manager's module, and the
// module proxy does not have them. cert-manager's own webhook is left out: it checks and completes what
// people write.
package certmanager
