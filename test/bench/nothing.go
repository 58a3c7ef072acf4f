package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// nothingCommand is the argument with which this program is the webhook that does nothing.
const nothingCommand = "nothing"

// denied is who sends the requests that the guard denies. The webhook that does nothing denies them,
// too: a denial at the first call spares the second, and the two are to have the same number of calls.
const denied = sandbox.GitOps

// serveNothing serves what is compared with: the server that Holdfast has, without a decision.
func serveNothing(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(nothingCommand, flag.ContinueOnError)
	port := flags.Int("port", 0, "port on 127.0.0.1")
	certs := flags.String("certs", "", "folder with tls.crt and tls.key")
	if err := flags.Parse(args); err != nil {
		return err
	}
	log.SetLogger(logr.Discard())
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *certs})
	var calls atomic.Int64
	server.Register("/", &ctrladmission.Webhook{Handler: ctrladmission.HandlerFunc(func(_ context.Context, req ctrladmission.Request) ctrladmission.Response {
		calls.Add(1)
		if req.UserInfo.Username == string(denied) {
			return ctrladmission.Denied("Refused, for no reason.")
		}
		return ctrladmission.Allowed("")
	})})
	same := sameAnswers()
	server.Register(samePath, &ctrladmission.Webhook{Handler: ctrladmission.HandlerFunc(func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		calls.Add(1)
		return same(ctx, req)
	})})
	server.Register("/calls", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "calls %d\n", calls.Load()) // nobody waits for it who has hung up
	}))
	return server.Start(ctx)
}

// samePath is where that program answers as the guard does.
const samePath = "/same"

// sameAnswers has the guard decide the first request, and answers the same ever after: with the patch that an
// API server has to apply, and without a decision. It is for repairs that hang on the request alone.
func sameAnswers() func(context.Context, ctrladmission.Request) ctrladmission.Response {
	guard := webhooks.Handlers{MachineNamespace: sandbox.MachineNamespace, Recorder: nobody{}, Metrics: webhooks.NewMetrics(prometheus.NewRegistry())}
	var first sync.Once
	var answer ctrladmission.Response
	return func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		first.Do(func() { answer = guard.Mutating().Handle(ctx, req) })
		return answer
	}
}

// nobody is a Recorder that records nothing.
type nobody struct{}

func (nobody) Decided(context.Context, webhooks.Record) {}

// nothing is that webhook's process.
type nothing struct {
	*process.Process
	url string
	ca  []byte
}

func startNothing(dir string) (*nothing, error) {
	authority, err := pki.NewAuthority("nothing")
	if err != nil {
		return nil, err
	}
	certs := filepath.Join(dir, "nothing")
	if err := os.MkdirAll(certs, 0o700); err != nil {
		return nil, err
	}
	if _, _, err := authority.IssueFiles(certs, "tls", pki.Leaf{CommonName: "nothing", Hosts: []string{"127.0.0.1"}}); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := process.Start(process.Spec{
		Name: "nothing", Path: self, Args: []string{nothingCommand, "-port", strconv.Itoa(port), "-certs", certs}, Log: filepath.Join(dir, "nothing.log"),
	})
	if err != nil {
		return nil, err
	}
	return &nothing{Process: p, url: "https://127.0.0.1:" + strconv.Itoa(port), ca: authority.CertPEM()}, nil
}
