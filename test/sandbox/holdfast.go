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

// holdfastPorts are on Holdfast's own address.
type holdfastPorts struct{ webhook, metrics, probe int }

// MetricsURL is where Holdfast serves its metrics.
func (s *Sandbox) MetricsURL() string {
	return "http://" + joinPort(s.holdfastHost, s.holdfastPorts.metrics) + "/metrics"
}

// ReadyURL is where Holdfast says whether it is ready.
func (s *Sandbox) ReadyURL() string {
	return "http://" + joinPort(s.holdfastHost, s.holdfastPorts.probe) + "/readyz"
}

// AuditLog is the file of Holdfast's audit records.
func (s *Sandbox) AuditLog() string { return s.logFile("holdfast-audit") }

func (s *Sandbox) holdfastCertDir() string { return filepath.Join(s.pki(), "holdfast-webhook") }

func (s *Sandbox) holdfastSpec() (process.Spec, error) {
	path, err := assets.Path("holdfast")
	if err != nil {
		return process.Spec{}, err
	}
	return process.Spec{
		Name: "holdfast", Path: path, Log: s.logFile("holdfast"),
		Args: append([]string{
			"run", "--mode=" + s.options.Mode,
			"--kubeconfig=" + s.Kubeconfig(Holdfast), "--machine-namespace=" + MachineNamespace,
			"--endpoints=" + strings.Join(s.VoterEndpoints(), ","),
			"--cacert=" + s.EtcdFiles.CA, "--cert=" + s.EtcdFiles.Cert, "--key=" + s.EtcdFiles.Key,
			"--webhook-host=" + s.holdfastHost, "--webhook-port=" + strconv.Itoa(s.holdfastPorts.webhook),
			"--webhook-cert-dir=" + s.holdfastCertDir(),
			"--metrics-bind-address=" + joinPort(s.holdfastHost, s.holdfastPorts.metrics),
			"--health-probe-bind-address=" + joinPort(s.holdfastHost, s.holdfastPorts.probe),
			"--leader-elect=false", "--audit-log-path=" + s.AuditLog(),
			"--quorum-guard-image=holdfast",
		}, s.options.HoldfastArgs...),
	}, nil
}

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
	if err := s.Holdfast.Start(); err != nil {
		return err
	}
	if err := s.WaitHoldfast(ctx); err != nil || registersItself {
		return err
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

// WaitHoldfast waits until Holdfast says that it is ready, after a restart say.
func (s *Sandbox) WaitHoldfast(ctx context.Context) error {
	return s.waitHTTP(ctx, &http.Client{Timeout: 2 * time.Second}, s.ReadyURL())
}

// holdfastManifests are the registrations that Holdfast prints for kubectl apply.
func (s *Sandbox) holdfastManifests(ctx context.Context) ([]object, error) {
	path, err := assets.Path("holdfast")
	if err != nil {
		return nil, err
	}
	args := []string{
		"manifests", "--machine-namespace=" + MachineNamespace,
		"--webhook-url=https://" + joinPort(s.holdfastHost, s.holdfastPorts.webhook),
		"--webhook-ca-file=" + filepath.Join(s.pki(), "ca.crt"),
	}
	if s.options.Mode == "full" {
		args = append(args, "--etcd-namespace="+EtcdNamespace)
	}
	for _, arg := range s.options.HoldfastArgs {
		// Both commands must be told of the same identities.
		switch flag, _, _ := strings.Cut(arg, "="); flag {
		case "--custodians", "--automation-users", "--escape-hatch-users":
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
