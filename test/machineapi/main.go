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
	"flag"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// namespace is where Machines live.
const namespace = "openshift-machine-api"

// options are the command line.
type options struct {
	kubeconfig  string
	cloudSocket string
	resync      time.Duration
	webhooks    webhookOptions
}

func main() {
	var o options
	flags := flag.NewFlagSet("machine-api", flag.ExitOnError) // in the default one controller-runtime has flags of its own
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	flags.StringVar(&o.cloudSocket, "cloud-socket", "", "unix `socket` of the sandbox's cloud API")
	flags.DurationVar(&o.resync, "resync", 10*time.Second, "`interval` at which all objects are looked at again without a change;\n"+
		"also the longest that a drain waits for its next try")
	flags.StringVar(&o.webhooks.host, "webhook-host", "", "IP `address` that serves machine-api-operator's own webhooks; none if empty")
	flags.IntVar(&o.webhooks.port, "webhook-port", 8443, "`port` of the webhooks")
	flags.StringVar(&o.webhooks.certDir, "webhook-cert-dir", "", "`directory` with tls.crt, tls.key and ca.crt for the webhooks")
	_ = flags.Parse(os.Args[1:]) // it exits on an error
	ctrl.SetLogger(klog.NewKlogr())
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		fmt.Fprintln(os.Stderr, "machine-api:", err)
		os.Exit(1)
	}
}
