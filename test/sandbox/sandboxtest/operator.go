package sandboxtest

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// Operate runs a stand-in for cluster-etcd-operator, at its pace, until the test ends.
func Operate(t testing.TB, s *sandbox.Sandbox, voters int) {
	t.Helper()
	end, err := s.Operate(custodian.Options{Desired: voters, Resync: time.Minute, Revision: 3 * time.Second}, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end() })
}
