package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// TestDrain: from the signal on a replica is not ready, answers all the same, and has each connection closed
// after its answer; the end comes the delay later.
func TestDrain(t *testing.T) {
	d := &drain{delay: 200 * time.Millisecond}
	signalled, signal := context.WithCancel(t.Context())
	later, stop := d.context(signalled)
	defer stop()
	server := httptest.NewUnstartedServer(d.handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	reused := func() (was bool) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { was = i.Reused }})
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.ProtoMajor != 2 || response.StatusCode != http.StatusOK {
			t.Errorf("%s %s", response.Proto, response.Status)
		}
		if err := response.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return was
	}
	reused()
	if !reused() || d.ready(nil) != nil || later.Err() != nil {
		t.Errorf("before the signal: ready is %v, ended %v", d.ready(nil), later.Err())
	}
	began := time.Now()
	signal()
	gomega.NewWithT(t).Eventually(func() error { return d.ready(nil) }).Should(gomega.HaveOccurred()) // it hears of it on a goroutine of its own
	reused()                                                                                          // the last answer on this connection
	if reused() {
		t.Error("a connection was used again after the signal")
	}
	<-later.Done()
	if took := time.Since(began); took < d.delay {
		t.Errorf("it ended %v after the signal", took)
	}
}
