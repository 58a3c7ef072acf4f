package scenario_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
)

const (
	registerClients = 3
	registerKeys    = 3
	registerEpoch   = 10 * time.Second // then other keys are used, so that no key's history grows too long to check
	registerPace    = 20               // calls of one client in a second
	registerCheck   = 2 * time.Minute
)

// registerCall is what a client asks etcd for. A register is an integer, 0 before its first write.
type registerCall struct {
	key           string
	kind          registerKind
	value, expect int
}

type registerKind int

const (
	registerRead registerKind = iota
	registerWrite
	registerSwap // writes value if the register holds expect
)

// registerAnswer is what came back. Of a call that failed nobody knows whether it was applied.
type registerAnswer struct {
	value   int // that was read
	swapped bool
	unknown bool
}

// registers are keys of etcd that several clients read and write at the same time. What they saw has to be
// linearizable: as if each call had been made at one moment between its beginning and its end.
type registers struct {
	from time.Time

	mu      sync.Mutex
	history []porcupine.Operation
}

// registers begins a history of calls that is checked when the test ends.
func (c *cluster) registers(t *testing.T, seed uint64) {
	t.Helper()
	r := &registers{from: time.Now()}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	for i := range registerClients {
		etcd, err := c.EtcdClient(c.Endpoints()...)
		must(t, err)
		t.Cleanup(func() { _ = etcd.Close() })
		work.Go(func() { r.client(ctx, i, etcd, rand.New(rand.NewPCG(seed, uint64(i)))) }) //nolint:gosec // a schedule, no secret
	}
	t.Cleanup(func() {
		cancel()
		work.Wait()
		unknown := 0
		for _, o := range r.history {
			if answer, ok := o.Output.(registerAnswer); ok && answer.unknown {
				unknown++
			}
		}
		if len(r.history) == unknown {
			t.Errorf("of %d calls of etcd none was answered", len(r.history))
		}
		if is := porcupine.CheckOperationsTimeout(registerModel(), r.history, registerCheck); is != porcupine.Ok {
			t.Errorf("%d calls of etcd are not linearizable: %s", len(r.history), is)
		}
		t.Logf("%d calls of etcd by %d clients, of %d nobody knows whether they were applied: checked for linearizability", len(r.history), registerClients, unknown)
	})
}

// client makes one call after the other until the context ends.
func (r *registers) client(ctx context.Context, id int, etcd *clientv3.Client, random *rand.Rand) {
	pace := rate.NewLimiter(registerPace, 1)
	seen := map[string]int{} // what a swap expects: what this client saw last
	for n := 1; pace.Wait(ctx) == nil; n++ {
		call := registerCall{
			key:   fmt.Sprintf("/holdfast-register/%d/%d", int(time.Since(r.from)/registerEpoch), random.IntN(registerKeys)),
			kind:  registerKind(random.IntN(3)),
			value: n*registerClients + id, // nobody else writes it
		}
		call.expect = seen[call.key]
		begin := time.Since(r.from)
		answer := ask(ctx, etcd, call)
		end := time.Since(r.from)
		switch {
		case answer.unknown && call.kind == registerRead:
			continue // it changed nothing, and nothing came back
		case answer.unknown:
			end = time.Duration(1<<63 - 1) // it may be applied at any time from now on, or never
		case call.kind == registerRead:
			seen[call.key] = answer.value
		case call.kind == registerWrite || answer.swapped:
			seen[call.key] = call.value
		}
		r.mu.Lock()
		r.history = append(r.history, porcupine.Operation{ClientId: id, Input: call, Call: int64(begin), Output: answer, Return: int64(end)})
		r.mu.Unlock()
	}
}

// ask makes a call.
func ask(ctx context.Context, etcd *clientv3.Client, call registerCall) registerAnswer {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	switch call.kind {
	case registerRead:
		got, err := etcd.Get(ctx, call.key)
		if err != nil {
			return registerAnswer{unknown: true}
		}
		if len(got.Kvs) == 0 {
			return registerAnswer{}
		}
		value, err := strconv.Atoi(string(got.Kvs[0].Value))
		return registerAnswer{value: value, unknown: err != nil}
	case registerWrite:
		_, err := etcd.Put(ctx, call.key, strconv.Itoa(call.value))
		return registerAnswer{unknown: err != nil}
	case registerSwap:
		condition := clientv3.Compare(clientv3.Value(call.key), "=", strconv.Itoa(call.expect))
		if call.expect == 0 {
			condition = clientv3.Compare(clientv3.Version(call.key), "=", 0)
		}
		got, err := etcd.Txn(ctx).If(condition).Then(clientv3.OpPut(call.key, strconv.Itoa(call.value))).Commit()
		if err != nil {
			return registerAnswer{unknown: true}
		}
		return registerAnswer{swapped: got.Succeeded}
	}
	return registerAnswer{unknown: true}
}

// registerModel is what a register is: the state is its value.
func registerModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, o := range history {
				key := o.Input.(registerCall).key //nolint:forcetypeassert // nothing else is put in
				byKey[key] = append(byKey[key], o)
			}
			out := make([][]porcupine.Operation, 0, len(byKey))
			for _, o := range byKey {
				out = append(out, o)
			}
			return out
		},
		Init: func() any { return 0 },
		Step: func(state, input, output any) (bool, any) {
			value := state.(int)              //nolint:forcetypeassert // as Init makes it
			call := input.(registerCall)      //nolint:forcetypeassert // nothing else is put in
			answer := output.(registerAnswer) //nolint:forcetypeassert // nothing else is put in
			switch call.kind {
			case registerRead:
				return answer.value == value, value
			case registerWrite:
				return true, call.value
			case registerSwap:
				holds := value == call.expect
				if holds {
					value = call.value
				}
				return answer.unknown || answer.swapped == holds, value
			}
			return false, state
		},
	}
}

// TestRegisterModel: the checker finds a stale read and a lost write, and takes a write of which nobody
// knows whether it was applied either way.
func TestRegisterModel(t *testing.T) {
	at := func(call, end int64, what registerCall, answer registerAnswer) porcupine.Operation {
		return porcupine.Operation{Input: what, Call: call, Output: answer, Return: end}
	}
	write := registerCall{kind: registerWrite, value: 1}
	read := registerCall{kind: registerRead}
	swap := registerCall{kind: registerSwap, expect: 1, value: 2}
	const never = 1<<63 - 1
	for name, test := range map[string]struct {
		history []porcupine.Operation
		want    bool
	}{
		"read your write":               {[]porcupine.Operation{at(1, 2, write, registerAnswer{}), at(3, 4, read, registerAnswer{value: 1})}, true},
		"a lost write":                  {[]porcupine.Operation{at(1, 2, write, registerAnswer{}), at(3, 4, read, registerAnswer{})}, false},
		"an unknown write, not applied": {[]porcupine.Operation{at(1, never, write, registerAnswer{unknown: true}), at(3, 4, read, registerAnswer{})}, true},
		"an unknown write, applied":     {[]porcupine.Operation{at(1, never, write, registerAnswer{unknown: true}), at(3, 4, read, registerAnswer{value: 1})}, true},
		"an unknown write comes and goes": {[]porcupine.Operation{
			at(1, never, write, registerAnswer{unknown: true}), at(3, 4, read, registerAnswer{value: 1}), at(5, 6, read, registerAnswer{}),
		}, false},
		"a swap":                      {[]porcupine.Operation{at(1, 2, write, registerAnswer{}), at(3, 4, swap, registerAnswer{swapped: true}), at(5, 6, read, registerAnswer{value: 2})}, true},
		"a swap of what is not there": {[]porcupine.Operation{at(3, 4, swap, registerAnswer{swapped: true})}, false},
		"a swap twice": {[]porcupine.Operation{
			at(1, 2, write, registerAnswer{}), at(3, 4, swap, registerAnswer{swapped: true}), at(5, 6, swap, registerAnswer{swapped: true}),
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := porcupine.CheckOperations(registerModel(), test.history); got != test.want {
				t.Errorf("linearizable: %v, want %v", got, test.want)
			}
		})
	}
}
