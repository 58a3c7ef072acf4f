// Command sandbox keeps a real control plane running on this machine until
// Ctrl-C, and cuts or restores the power of its hosts.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

const usage = `Usage:
  sandbox up [--replicas 1|3|5] [--mode full|guard] [--holdfast-replicas N | --without-holdfast | --for-install] [--dir DIR]
        starts a control plane and keeps it until Ctrl-C
  sandbox power on|off HOST [--dir DIR]
        cuts or restores the power of a host of the sandbox in DIR

`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// errUsage is what a person can mend on the command line.
type errUsage struct{ error }

// run is the command; the result is its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	var options sandbox.Options
	flags := pflag.NewFlagSet("sandbox", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&options.Dir, "dir", ".sandbox", "directory of the sandbox")
	flags.IntVar(&options.Replicas, "replicas", 3, "control-plane Machines: 1, 3 or 5")
	flags.StringVar(&options.Mode, "mode", "full", "Holdfast's mode: full or guard")
	flags.BoolVar(&options.PlatformSets, "cpms", false, "run the platform's control plane machine set operator as well")
	flags.BoolVar(&options.APIServers, "api-servers", false, "run an API server on each host, on its own member of etcd alone, behind one address")
	flags.IntVar(&options.HoldfastReplicas, "holdfast-replicas", 1, "replicas of Holdfast, which elect one: 1 to 5")
	flags.BoolVar(&options.WithoutHoldfast, "without-holdfast", false, "leave Holdfast out")
	flags.BoolVar(&options.ForInstall, "for-install", false, "leave Holdfast to you, who install it as on a cluster: Deployments, Services and pods of Holdfast's image work")
	operator := flags.Bool("etcd-operator", true, "in guard mode, play cluster-etcd-operator: put on and release the hook, and move etcd's members")
	flags.BoolVar(&options.Bootstrap, "bootstrap", false, "begin as an installation ends: etcd has the installer's member too, until ConfigMap kube-system/bootstrap says status: complete")
	flags.StringArrayVar(&options.HoldfastArgs, "holdfast-arg", nil, "one more flag for holdfast run; may be repeated")

	err := flags.Parse(args)
	if options.ForInstall && !flags.Changed("mode") {
		options.Mode = "guard" // as the overlays are, beside an operator
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, "%s%s", usage, flags.FlagUsages())
		return 0
	case err != nil:
		err = errUsage{err}
	default:
		err = dispatch(flags.Args(), options, *operator, stdout)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "sandbox: %v\n", err)
	if errors.As(err, &errUsage{}) {
		return 2
	}
	return 1
}

func dispatch(args []string, options sandbox.Options, operator bool, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "up":
		if err := options.Validate(); err != nil {
			return errUsage{err}
		}
		return up(options, operator, out)
	case len(args) == 3 && args[0] == "power" && (args[1] == "on" || args[1] == "off"):
		return power(options.Dir, args[2], args[1] == "on", out)
	default:
		return errUsage{fmt.Errorf("say `sandbox up` or `sandbox power on|off HOST`, not %q; see --help", strings.Join(args, " "))}
	}
}

// up starts a sandbox and keeps it until a signal or a failure.
func up(options sandbox.Options, operator bool, out io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	started := time.Now()
	options.Progress = func(line string) {
		fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(started).Seconds(), line)
	}
	s, err := sandbox.Start(ctx, options)
	if err != nil {
		if ctx.Err() != nil {
			fmt.Fprintf(out, "interrupted; everything is stopped\n")
			return nil
		}
		return err
	}
	fmt.Fprintf(out, "%6.1fs  ready\n", time.Since(started).Seconds())
	if operator && options.Mode == "guard" {
		end, err := operate(ctx, s, &options)
		if err != nil {
			return errors.Join(err, s.Stop())
		}
		defer func() { err = errors.Join(err, end()) }()
		fmt.Fprintf(out, "%6.1fs  a stand-in plays cluster-etcd-operator\n", time.Since(started).Seconds())
	}
	if options.ForInstall {
		explainInstall(out, s, options)
	} else {
		explain(out, s, options)
	}

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-s.Failed():
		fmt.Fprintf(out, "\na part of the sandbox has died: stopping the rest\n")
	}
	stop() // a second Ctrl-C ends it at once, and the kernel ends its children
	fmt.Fprintf(out, "\nstopping ...\n")
	err = errors.Join(failure, s.Stop())
	fmt.Fprintf(out, "stopped; the logs stay in %s\n", s.Logs)
	return err
}

// operate plays cluster-etcd-operator until it is ended. Where Holdfast is installed as on a cluster there is its Deployment, too, by which
// kubectl holdfast uninstall knows whose the hook is.
func operate(ctx context.Context, s *sandbox.Sandbox, options *sandbox.Options) (end func() error, err error) {
	if options.ForInstall {
		admin, err := kubernetes.NewForConfig(s.Config(sandbox.Admin))
		if err != nil {
			return nil, err
		}
		d := custodian.Deployment()
		if _, err := admin.AppsV1().Deployments(d.Namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("Deployment %s of the stand-in: %w", d.Name, err)
		}
	}
	return s.Operate(custodian.Options{Desired: options.Replicas}, time.Second)
}

// shown is the sandbox's directory as a person would type it.
func shown(s *sandbox.Sandbox, options sandbox.Options) string {
	if rel, err := filepath.Rel(".", s.Dir); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return options.Dir
}

func explainInstall(out io.Writer, s *sandbox.Sandbox, options sandbox.Options) {
	manifests := "holdfast-self-signed.yaml"
	if options.Mode == "full" {
		manifests = "holdfast-self-signed-full-mode.yaml"
	}
	fmt.Fprintf(out, `
Holdfast is yours to install: Deployments, Services and pods of Holdfast's image work. In another terminal:

  source %[1]s/env                        # KUBECONFIG, ETCDCTL_*, PATH; you are %[2]s
  make manifests IMAGE=localhost/holdfast TAG=sandbox
  kubectl apply -f bin/release/%[3]s
  kubectl -n holdfast-system set env deployment/holdfast ETCD_ENDPOINTS="$ETCDCTL_ENDPOINTS"
  kubectl holdfast check --wait

Pods are processes here. Their logs: kubectl logs, kubectl holdfast audit, or %[1]s/logs/pod-*.log
Ctrl-C stops everything.
`, shown(s, options), sandbox.Admin, manifests)
}

func explain(out io.Writer, s *sandbox.Sandbox, options sandbox.Options) {
	dir := shown(s, options)
	host := s.Hosts()[0].Name
	fmt.Fprintf(out, `
In another terminal:

  source %[1]s/env                        # KUBECONFIG, ETCDCTL_*, PATH
  kubectl get machines                         # you are %[2]s
  kubectl get nodes
  etcdctl member list -w table
  kubectl delete machine %[3]s --wait=false
  sandbox power off %[3]s --dir %[1]s     # and: power on

What Holdfast says to that:

  kubectl holdfast status --watch
  kubectl holdfast explain %[3]s
  kubectl holdfast replace %[3]s
  kubectl holdfast audit %[1]s/logs/holdfast*-audit.log

Others you may be: KUBECONFIG=%[1]s/kubeconfig/NAME kubectl ..., with NAME one of
alice (a person), argocd-application-controller, machine-api-controllers,
etcd-operator, holdfast. Logs of each process: %[1]s/logs

A Holdfast that is killed is started again; so is one that loses its election.
Ctrl-C stops everything.
`, dir, sandbox.Admin, host)
}

// power asks the cloud of the sandbox in dir.
func power(dir, host string, on bool, out io.Writer) error {
	body, err := json.Marshal(map[string]bool{"on": on})
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", sandbox.SocketIn(dir))
		},
	}}
	response, err := client.Post("http://cloud/instances/"+url.PathEscape(host)+"/power", "application/json", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("no sandbox answers in %s: start one with `sandbox up`, or name its --dir (%w)", dir, err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return fmt.Errorf("the sandbox in %s: %w", dir, err)
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(answer)))
	}
	var instance sandbox.Instance
	if err := json.Unmarshal(answer, &instance); err != nil {
		return fmt.Errorf("the sandbox in %s: %w", dir, err)
	}
	fmt.Fprintf(out, "%s is %s\n", instance.Name, instance.State)
	return nil
}
