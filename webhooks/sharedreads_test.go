package webhooks_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestOwnLooks: the two handlers judge one request by a look each: between them somebody may have changed the cluster.
func TestOwnLooks(t *testing.T) {
	deleting := strings.Replace(stored, `"name":"m"`, `"name":"m","resourceVersion":"7","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1)
	released := strings.Replace(stripped, `"name":"m"`, `"name":"m","resourceVersion":"7","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1)
	request := review(t, admissionv1.Update, deleting, released, func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = operator })
	g := &guard{calls: map[string]int{}, snapshot: ring()}
	mutates, validates, _ := local(t, g)
	ask(t, mutates, "application/json", request)
	ask(t, validates, "application/json", request)
	if g.looks != 2 {
		t.Errorf("%d looks", g.looks)
	}
}

// TestSharedLook: requests that come together share a look that began after they came, and none waits for one that hangs.
func TestSharedLook(t *testing.T) {
	const ms = time.Millisecond
	request := review(t, admissionv1.Delete, stored, "null")
	for _, c := range []struct {
		name  string
		come  []time.Duration // when a request comes
		takes []time.Duration // what each look takes; a negative one goes wrong after that
		gone  []time.Duration // when the answers are there
	}{
		{"alone", []time.Duration{0, 50 * ms}, []time.Duration{20 * ms, 20 * ms}, []time.Duration{20 * ms, 70 * ms}},
		{"while another looks", []time.Duration{0, 1 * ms, 2 * ms, 19 * ms}, []time.Duration{20 * ms, 20 * ms}, []time.Duration{20 * ms, 40 * ms, 40 * ms, 40 * ms}},
		{"one after the other", []time.Duration{0, 1 * ms, 21 * ms}, []time.Duration{20 * ms, 20 * ms, 20 * ms}, []time.Duration{20 * ms, 40 * ms, 60 * ms}},
		{"while a look hangs", []time.Duration{0, 1 * ms, 2 * ms, 150 * ms}, []time.Duration{2000 * ms, 20 * ms, 20 * ms}, []time.Duration{121 * ms, 121 * ms, 170 * ms, 2000 * ms}},
		{"a look goes wrong", []time.Duration{0, 1 * ms, 2 * ms, 30 * ms}, []time.Duration{20 * ms, -10 * ms, 20 * ms}, []time.Duration{20 * ms, 30 * ms, 30 * ms, 50 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &guard{calls: map[string]int{}, snapshot: ring()}
				g.slow = func(look int) {
					takes := c.takes[look-1]
					<-time.After(max(takes, -takes)) // by the bubble's clock
					if takes < 0 {
						panic("a look")
					}
				}
				_, validates, _ := local(t, g)
				begin := time.Now()
				answered := make(chan time.Duration, len(c.come))
				for _, at := range c.come {
					go func() {
						<-time.After(at)
						ask(t, validates, "application/json", request)
						answered <- time.Since(begin)
					}()
				}
				for i, want := range c.gone {
					if at := <-answered; at != want {
						t.Errorf("answer %d is there after %s, want %s", i, at, want)
					}
				}
				if g.looks != len(c.takes) {
					t.Errorf("%d looks, want %d", g.looks, len(c.takes))
				}
			})
		})
	}
}

// TestWhoSharesALook: of those who come together, who may be judged by one look.
func TestWhoSharesALook(t *testing.T) {
	bare := strings.Replace(stored, quorum.LatchName, "Nothing", 1)
	deleting := strings.Replace(stored, `"name":"m"`, `"name":"m","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1)
	released := strings.Replace(stripped, `"name":"m"`, `"name":"m","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1)
	custodian := func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = operator }
	dry := func(r *admissionv1.AdmissionRequest) { r.DryRun = new(true) }
	for _, c := range []struct {
		name  string
		send  []byte
		looks int // of four
	}{
		{"the delete of a Machine that is held", review(t, admissionv1.Delete, stored, "null"), 2},
		{"the delete of one that is not", review(t, admissionv1.Delete, bare, "null"), 4},
		{"that, as a dry run", review(t, admissionv1.Delete, bare, "null", dry), 2},
		{"a release", review(t, admissionv1.Update, deleting, released, custodian), 4},
		{"that, as a dry run", review(t, admissionv1.Update, deleting, released, custodian, dry), 2},
		{"a person's release", review(t, admissionv1.Update, deleting, released), 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &guard{calls: map[string]int{}, snapshot: ring()}
				g.slow = func(int) { <-time.After(20 * time.Millisecond) }
				mutates, validates, _ := local(t, g)
				h := validates
				if strings.Contains(string(c.send), `"UPDATE"`) {
					h = mutates
				}
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() { ask(t, h, "application/json", c.send) })
					synctest.Wait()
				}
				all.Wait()
				if g.looks != c.looks {
					t.Errorf("%d looks, want %d", g.looks, c.looks)
				}
			})
		})
	}
}

// TestSharedLookIsFresh: a caller that comes after a change during a look sees the change.
func TestSharedLookIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &guard{calls: map[string]int{}, snapshot: ring()}
		g.slow = func(int) { <-time.After(20 * time.Millisecond) }
		_, validates, _ := local(t, g)
		first := make(chan bool)
		hosts := strings.Replace(stored, `"spec":`, `"status":{"addresses":[{"type":"InternalIP","address":"`+address+`"}]},"spec":`, 1)
		request := review(t, admissionv1.Delete, hosts, "null")
		go func() { first <- ask(t, validates, "application/json", request).Allowed }()
		synctest.Wait()
		g.set(ring(going))
		if ask(t, validates, "application/json", request).Allowed {
			t.Error("judged by a look from before another Machine's deletion")
		}
		if !<-first {
			t.Error("the first is refused")
		}
	})
}
