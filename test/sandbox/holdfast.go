package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/process"
)

// MetricsURL is where Holdfast serves its metrics; of several replicas the first.
func (s *Sandbox) MetricsURL() string { return s.url(s.holdfasts[0].ports.metrics, "/metrics") }

// url is one of those that Holdfast serves without TLS.
func (s *Sandbox) url(port int, path string) string {
	return "http://" + joinPort(s.holdfastHost, port) + path
}

// ReadyURL is where Holdfast says whether it is ready; of several replicas the first.
func (s *Sandbox) ReadyURL() string { return s.url(s.holdfasts[0].ports.probe, "/readyz") }

// AuditLogs are the files of Holdfast's audit records, one for each replica.
func (s *Sandbox) AuditLogs() []string {
	var files []string
	for _, r := range s.holdfasts {
		files = append(files, s.auditLog(r.component.Name))
	}
	return files
}

func (s *Sandbox) auditLog(replica string) string { return s.logFile(replica + "-audit") }

func (s *Sandbox) holdfastCertDir() string { return filepath.Join(s.pki(), "holdfast-webhook") }

// holdfastSpec is how a replica runs. Its name is that of its logs.
func (s *Sandbox) holdfastSpec(name string, ports holdfastPorts) (process.Spec, error) {
	path, err := assets.Path("holdfast")
	if err != nil {
		return process.Spec{}, err
	}
	args := s.options.HoldfastArgs
	if s.options.KeepsRegistrations {
		args = append([]string{"--webhook-url=https://" + joinPort(s.holdfastHost, s.webhookPort)}, args...)
	}
	return process.Spec{
		Name: name, Path: path, Log: s.logFile(name),
		Args: append([]string{
			"run", "--mode=" + s.options.Mode,
			"--kubeconfig=" + s.Kubeconfig(Holdfast), "--machine-namespace=" + MachineNamespace,
			"--endpoints=" + strings.Join(s.VoterEndpoints(), ","),
			"--cacert=" + s.EtcdFiles.CA, "--cert=" + s.EtcdFiles.Cert, "--key=" + s.EtcdFiles.Key,
			"--webhook-host=" + s.holdfastHost, "--webhook-port=" + strconv.Itoa(ports.webhook),
			"--webhook-cert-dir=" + s.holdfastCertDir(),
			"--metrics-bind-address=" + joinPort(s.holdfastHost, ports.metrics),
			"--health-probe-bind-address=" + joinPort(s.holdfastHost, ports.probe),
			"--leader-elect=" + strconv.FormatBool(len(s.holdfasts) > 1), "--audit-log-path=" + s.auditLog(name),
			"--quorum-guard-image=holdfast",
			"--stabilization=0", "--member-dead-timeout=10s", // HoldfastArgs may have longer ones, as by default
		}, args...),
	}, nil
}

// SetHoldfastArgs replaces HoldfastArgs for replicas that are started from now on.
func (s *Sandbox) SetHoldfastArgs(args ...string) { s.options.HoldfastArgs = args }

// StartHoldfast starts the manager and, when it is ready to answer, registers
// its webhooks: the other way round its own first requests would fail closed.
// One that is told a --webhook-url in HoldfastArgs keeps its registrations itself.
func (s *Sandbox) StartHoldfast(ctx context.Context) error {
	registersItself, err := s.prepareCertificate()
	if err != nil {
		return fmt.Errorf("holdfast's certificate: %w", err)
	}
	if err := s.startPods(ctx); err != nil {
		return err
	}
	s.cloud.relieved.Store(s.options.Mode == "full")
	for _, c := range s.Holdfasts() {
		if err := c.Start(); err != nil {
			return err
		}
	}
	if err := s.WaitHoldfast(ctx); err != nil {
		return err
	}
	s.holdfastStood.Store(true)
	if registersItself {
		return nil
	}
	manifests, err := s.holdfastManifests(ctx)
	if err != nil {
		return err
	}
	return s.apply(ctx, manifests...)
}

// prepareCertificate issues the webhooks' certificate: for Holdfast's address, and for the host of a
// --webhook-url in HoldfastArgs, where Holdfast has its callers look for it and needs the CA beside.
func (s *Sandbox) prepareCertificate() (registersItself bool, err error) {
	leaf := pki.Leaf{CommonName: "holdfast", Hosts: []string{s.holdfastHost}}
	registersItself = s.options.KeepsRegistrations
	for _, arg := range s.options.HoldfastArgs {
		if at, ok := strings.CutPrefix(arg, "--webhook-url="); ok {
			u, err := url.Parse(at)
			if err != nil {
				return false, fmt.Errorf("--webhook-url: %w", err)
			}
			leaf.Hosts, registersItself = append(leaf.Hosts, u.Hostname()), true
		}
	}
	if err := os.MkdirAll(s.holdfastCertDir(), 0o700); err != nil {
		return false, err
	}
	if _, err := s.ca.WriteCert(s.holdfastCertDir()); err != nil {
		return false, err
	}
	_, _, err = s.ca.IssueFiles(s.holdfastCertDir(), "tls", leaf)
	return registersItself, err
}

// WaitHoldfast waits until each replica says that it is ready, and requests are led to it, after a restart say.
func (s *Sandbox) WaitHoldfast(ctx context.Context) error {
	for _, r := range s.holdfasts {
		if err := s.poll(ctx, func(ctx context.Context) error {
			if err := probeHTTP(ctx, http.DefaultClient, 2*time.Second, s.url(r.ports.probe, "/readyz")); err != nil {
				return err
			}
			if len(s.holdfasts) > 1 && !r.serves() {
				return fmt.Errorf("no request is led to %s", r.component.Name)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// holdfastManifests are the registrations that Holdfast prints for kubectl apply.
func (s *Sandbox) holdfastManifests(ctx context.Context) ([]object, error) {
	path, err := assets.Path("holdfast")
	if err != nil {
		return nil, err
	}
	args := []string{
		"manifests", "--machine-namespace=" + MachineNamespace,
		"--webhook-url=https://" + joinPort(s.holdfastHost, s.webhookPort),
		"--webhook-ca-file=" + filepath.Join(s.pki(), "ca.crt"),
	}
	if s.options.Mode == "full" {
		args = append(args, "--etcd-namespace="+EtcdNamespace)
	}
	for _, arg := range s.options.HoldfastArgs {
		// Both commands must be told of the same identities, and what becomes of a verdict.
		switch flag, _, _ := strings.Cut(arg, "="); flag {
		case "--enforcement", "--custodians", "--automation-users", "--escape-hatch-users":
			args = append(args, arg)
		}
	}
	command := exec.CommandContext(ctx, path, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("holdfast manifests: %w\n%s", err, stderr.String())
	}
	return parse("holdfast manifests", out)
}
