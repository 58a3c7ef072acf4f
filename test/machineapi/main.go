// Command machine-api runs the real Machine API controllers of OpenShift
// (machine, drain, nodelink and MachineHealthCheck, out of machine-api-operator)
// as one process, for Holdfast's sandbox and tests. Only the provider is ours:
// instead of a cloud's API it calls the sandbox's, over a unix socket.
//
// It is a module of its own because machine-api-operator pins Kubernetes 0.34
// and controller-runtime 0.22. With --webhook-host it also serves and registers machine-api-operator's
// own webhooks for Machines and MachineSets.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

const usage = `machine-api runs OpenShift's Machine API controllers (machine, drain, nodelink,
MachineHealthCheck) with a provider whose instances are processes on this machine.

  machine-api --kubeconfig FILE --cloud-socket SOCKET

`

// options are the command line.
type options struct {
	kubeconfig  string
	namespace   string
	cloudSocket string
	resync      time.Duration
	webhooks    webhookOptions
}

// parse reads the command line. Its errors are one sentence each; for --help
// it writes the help and returns flag.ErrHelp.
func parse(args []string, help io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("machine-api", flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server (required)")
	flags.StringVar(&o.cloudSocket, "cloud-socket", "", "unix `socket` of the sandbox's cloud API (required)")
	flags.StringVar(&o.namespace, "namespace", "openshift-machine-api", "`namespace` of the Machines")
	flags.DurationVar(&o.resync, "resync", 10*time.Second, "`interval` at which all objects are looked at again without a change;\n"+
		"also the longest that a drain waits for its next try")
	flags.StringVar(&o.webhooks.host, "webhook-host", "", "IP `address` that serves machine-api-operator's own webhooks; none if empty")
	flags.IntVar(&o.webhooks.port, "webhook-port", 8443, "`port` of the webhooks")
	flags.StringVar(&o.webhooks.certDir, "webhook-cert-dir", "", "`directory` with tls.crt, tls.key and ca.crt for the webhooks")
	flags.SetOutput(io.Discard)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprint(help, usage)
			flags.SetOutput(help)
			flags.PrintDefaults()
		}
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("takes flags only, not %q", flags.Arg(0))
	case o.kubeconfig == "":
		return options{}, errors.New("needs --kubeconfig, the file that says how to reach the API server")
	case o.cloudSocket == "":
		return options{}, errors.New("needs --cloud-socket, the unix socket of the sandbox's cloud API")
	case o.namespace == "":
		return options{}, errors.New("needs a --namespace that is not empty")
	case o.webhooks.host != "" && o.webhooks.certDir == "":
		return options{}, errors.New("needs --webhook-cert-dir with --webhook-host")
	case o.resync < time.Second:
		return options{}, fmt.Errorf("needs a --resync of at least 1s, not %s", o.resync)
	}
	return o, nil
}

// restConfig reads the kubeconfig. The client does not throttle itself: a
// throttled replacement would measure the client.
func (o options) restConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot use --kubeconfig %s: %w", o.kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}

func main() {
	os.Exit(command(ctrl.SetupSignalHandler(), os.Args[1:], os.Stdout, os.Stderr))
}

// command runs the process and returns its exit code: 2 for a command line that
// cannot work, 1 if the controllers end by themselves.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	var config *rest.Config
	if err == nil {
		config, err = opts.restConfig()
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "machine-api: %v (see machine-api --help)\n", err)
		return 2
	}
	ctrl.SetLogger(klog.NewKlogr())
	if err := run(ctx, config, opts); err != nil {
		_, _ = fmt.Fprintf(stderr, "machine-api: %v\n", err)
		return 1
	}
	return 0
}
