// Package tier divides the tests into two tiers. make test runs the first with -short: everything but the long
// scenarios. make scenarios runs the second: the tests that call Long. go test without -short runs both.
package tier

import (
	"os"
	"testing"
)

// Long marks a test of the second tier. It is the first statement of the test.
func Long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a long scenario, which make scenarios runs")
	}
}

// Lacks skips a test that this computer cannot run. In CI it fails the test: nothing is left out there.
func Lacks(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
