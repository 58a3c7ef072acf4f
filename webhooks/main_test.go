package webhooks_test

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// met has the rules that were recorded, of all tests of this run.
var met sync.Map

// TestMain fails a whole run in which some rule was not met.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if code == 0 && flag.Lookup("test.run").Value.String() == "" {
		for _, rule := range quorum.Rules {
			if _, ok := met.Load(rule); !ok {
				fmt.Printf("FAIL: no test meets rule %s\n", rule)
				code = 1
			}
		}
	}
	os.Exit(code)
}
