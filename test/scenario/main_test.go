package scenario_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// TestMain lets all tests run side by side: test/slots limits how many of them have a sandbox. A whole run of the first
// tier (make test) fails unless Holdfast took each kind of action in it.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	code := m.Run()
	if code == 0 && testing.Short() && flag.Lookup("test.run").Value.String() == "" {
		for _, missing := range seen.missing() {
			fmt.Printf("FAIL: no test of the first tier has Holdfast do this: %s\n", missing)
			code = 1
		}
	}
	os.Exit(code)
}

// seen are the actions that Holdfast took on the control planes of this run.
var seen actions

// actions is a set of kinds of action, as the metrics name them.
type actions struct {
	mu   sync.Mutex
	done map[string]bool
}

// actionDone is a line of Holdfast's metrics.
var actionDone = regexp.MustCompile(`^holdfast_(?:plan|machineset)_actions_total\{(?:kind|action)="([^"]+)",result="done"\}`)

// note adds what the metrics of a control plane's Holdfast count. A Holdfast that does not run adds nothing.
func (a *actions) note(url string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return
	}
	defer func() { _ = response.Body.Close() }()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done == nil {
		a.done = map[string]bool{}
	}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if found := actionDone.FindStringSubmatch(lines.Text()); found != nil {
			a.done[found[1]] = true
		}
	}
}

// missing are the kinds of action that no control plane saw. A mark is made only beside cluster-etcd-operator, which may be faster:
// TestBeside of test/custodian waits for it.
func (a *actions) missing() (kinds []string) {
	for k := membership.KindAddHook; k <= membership.KindAddLearner; k++ {
		if k != membership.KindMarkIdle {
			kinds = append(kinds, k.String())
		}
	}
	for _, change := range []machineset.Change{
		machineset.TakeSet{}, machineset.Adopt{}, machineset.Create{}, machineset.Delete{}, machineset.Disown{}, machineset.LeaveSet{},
	} {
		kinds = append(kinds, machineset.Action{Change: change}.Name())
	}
	return slices.DeleteFunc(kinds, func(kind string) bool { return a.done[kind] })
}
