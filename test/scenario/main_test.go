package scenario_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets all tests run side by side: test/slots limits how many of them have a sandbox.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
