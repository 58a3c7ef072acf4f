package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

// TestStartup: while the API server does not tell what is needed, the process is alive and not ready, and says why;
// what it does tell counts at once.
func TestStartup(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return fmt.Sprint(response.StatusCode, " ", string(body), err)
	}
	s := &startup{probeAddr: address, log: logr.Discard()}
	asked := 0
	err = s.await(t.Context(), func(context.Context) error {
		switch asked++; asked {
		case 1:
			return errors.New("etcdserver: no leader")
		default:
			if got := get("/readyz"); !strings.HasPrefix(got, "503 waiting for the API server: etcdserver: no leader") {
				t.Errorf("not ready: %s", got)
			}
			if got := get("/healthz"); !strings.HasPrefix(got, "200 ") {
				t.Errorf("alive: %s", got)
			}
			return nil
		}
	})
	if err != nil || asked != 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	if again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address); err != nil {
		t.Errorf("the manager cannot answer probes: %v", err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}

	asked = 0
	err = s.await(t.Context(), func(context.Context) error { asked++; return cli.Usage("not here") })
	if !errors.As(err, new(cli.UsageError)) || asked != 1 {
		t.Errorf("what is final: asked %d times: %v", asked, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	if err := s.await(ctx, func(context.Context) error { stop(); return errors.New("no") }); !errors.Is(err, context.Canceled) {
		t.Errorf("told to stop while it waits: %v", err)
	}
}
