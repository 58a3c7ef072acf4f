package controller

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// TestHedge: after a member has left etcd, a read that hangs is sent again beside the first, one that fails as well, and
// the first good answer counts. At other times, and for writes and watches, nothing is sent twice.
func TestHedge(t *testing.T) {
	var asked, hang, fail atomic.Int32 // hang and fail: so many of the first requests
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n := asked.Add(1); {
		case n <= hang.Load():
			<-r.Context().Done()
		case n <= fail.Load():
			http.Error(w, "raft: stopped", http.StatusInternalServerError)
		default:
			_, _ = io.WriteString(w, "answer")
		}
	}))
	defer server.Close()
	h := &Hedge{}
	connection := &http.Client{Transport: h.Wrap(server.Client().Transport), Timeout: 3 * time.Second}
	ask := func(method, query string) (text string, status int, times int32, err error) {
		t.Helper()
		asked.Store(0)
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+query, nil)
		must(t, err)
		answer, err := connection.Do(r)
		if err != nil {
			return "", 0, asked.Load(), err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		must(t, err)
		return string(body), answer.StatusCode, asked.Load(), nil
	}

	fail.Store(1)
	if _, status, times, err := ask(http.MethodGet, ""); err != nil || status != http.StatusInternalServerError || times != 1 {
		t.Errorf("before a member has left: %d after %d requests, %v", status, times, err)
	}
	h.Begin()
	for what, first := range map[string]struct{ hang, fail, times int32 }{
		"in order":                 {0, 0, 1},
		"two hang":                 {2, 0, 3},
		"two fail":                 {0, 2, 3},
		"two hang, then one fails": {2, 3, 4},
	} {
		hang.Store(first.hang)
		fail.Store(first.fail)
		if text, _, times, err := ask(http.MethodGet, "?labelSelector=x"); err != nil || text != "answer" || times != first.times {
			t.Errorf("%s: %q after %d requests, %v", what, text, times, err)
		}
	}
	hang.Store(0)
	fail.Store(100)
	if _, status, times, err := ask(http.MethodGet, ""); err != nil || status != http.StatusInternalServerError || times != hedgeMost {
		t.Errorf("where all fail: %d after %d requests, %v", status, times, err)
	}
	for _, alone := range [][2]string{{http.MethodGet, "?watch=true"}, {http.MethodPatch, ""}, {http.MethodPut, ""}, {http.MethodPost, ""}, {http.MethodDelete, ""}} {
		if _, status, times, err := ask(alone[0], alone[1]); err != nil || status != http.StatusInternalServerError || times != 1 {
			t.Errorf("%s %s: %d after %d requests, %v", alone[0], alone[1], status, times, err)
		}
	}
	hang.Store(100)
	if _, _, times, err := ask(http.MethodGet, ""); err == nil || times != hedgeMost {
		t.Errorf("where all hang: %v after %d requests", err, times)
	}
	h.until.Store(time.Now().UnixNano())
	hang.Store(0)
	fail.Store(1)
	if _, _, times, _ := ask(http.MethodGet, ""); times != 1 {
		t.Errorf("long after a member has left a read is sent %d times", times)
	}
}
