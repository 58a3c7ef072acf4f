package main

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/internal/webhookserver"
)

// registrationFlags say where API servers find the webhooks and whom they trust there: both for run and
// for manifests.
type registrationFlags struct {
	service, url string
	caFile       string
	annotations  map[string]string
}

func (r *registrationFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&r.service, "webhook-service", "", "Service NAMESPACE/NAME[:PORT] at which API servers find the webhooks in a cluster; the port is 443 if it is left out")
	f.StringVar(&r.url, "webhook-url", "", "https URL at which API servers find the webhooks outside a cluster, instead of --webhook-service")
	f.StringVar(&r.caFile, "webhook-ca-file", "", "file with the CA of the webhooks' certificate, PEM")
	f.StringToStringVar(&r.annotations, "registration-annotations", nil, "annotations KEY=VALUE[,KEY=VALUE] of the webhook configurations that make another operator fill in their caBundle, instead of a CA file: service.beta.openshift.io/inject-cabundle=true, or cert-manager.io/inject-ca-from=NAMESPACE/CERTIFICATE")
}

// given reports whether there is a place to register.
func (r *registrationFlags) given() bool { return r.service != "" || r.url != "" }

// place checks the flags that say where, and puts them into options.
func (r *registrationFlags) place(o *registrations.Options) error {
	switch {
	case r.service != "" && r.url != "":
		return cli.Usage("--webhook-service and --webhook-url are both set; API servers find the webhooks at one of them")
	case r.service != "":
		service, err := registrations.ParseService(r.service)
		if err != nil {
			return cli.Usage("--webhook-service: %v; it is a Service such as holdfast-system/holdfast-webhook", err)
		}
		o.Service = service
	default:
		if u, err := url.Parse(r.url); err != nil || u.Scheme != "https" || u.Hostname() == "" {
			return cli.Usage("--webhook-url is %q; it is an https URL that the API server reaches, such as https://10.0.0.9:9443", r.url)
		}
		o.URL = r.url
	}
	for _, key := range slices.Sorted(maps.Keys(r.annotations)) {
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			return cli.Usage("--registration-annotations: %q is no key of an annotation: %s", key, problems[0])
		}
	}
	return nil
}

// webhookFlags say how run serves the webhooks, and what it does about their registrations.
type webhookFlags struct {
	registrationFlags
	source, certDir string
	clientCA        string
	host            string
	port            int

	changed func(flag string) bool // whether it is on the command line
	files   string                 // the CA file, "" for none
}

const (
	fromFiles = "files"
	fromCA    = "self-signed"
	// Secrets in Holdfast's namespace, which are made where they do not exist: the CA of self-signed certificates, and what replicas that
	// keep the registrations share.
	caSecret     = "holdfast-webhook-ca"
	sharedSecret = "holdfast-webhook-shared"
)

func (w *webhookFlags) bind(f *pflag.FlagSet) {
	w.registrationFlags.bind(f)
	w.changed = f.Changed
	f.Lookup("webhook-service").Usage += ". With it or --webhook-url the replicas keep the registrations and policies that `holdfast manifests` prints: each makes those that are absent, the elected one puts them back when they are changed"
	f.Lookup("webhook-ca-file").Usage += ", for the registrations' caBundle; ca.crt in --webhook-cert-dir if that exists"
	f.StringVar(&w.host, "webhook-host", "", "address that the webhooks listen on; all if empty")
	f.IntVar(&w.port, "webhook-port", 9443, "port that the webhooks listen on")
	f.StringVar(&w.source, "webhook-cert-source", fromFiles, "where the webhooks' certificate comes from: files (--webhook-cert-dir) or self-signed (from a CA of Holdfast's own in Secret "+caSecret+" of --leader-elect-namespace)")
	f.StringVar(&w.certDir, "webhook-cert-dir", "/etc/holdfast/tls", "folder with the webhooks' tls.crt and tls.key; they are read again when they change")
	f.StringVar(&w.clientCA, "webhook-client-ca-file", "", "file with the CAs, PEM, of the certificates that API servers show the webhooks (their AdmissionConfiguration names them); Holdfast answers only clients with one of these certificates. It is read again when it changes. Without the flag no certificate is asked for")
}

// check finds what is wrong with the flags.
func (w *webhookFlags) check() error {
	const forRegistrations = " is for the registrations, which Holdfast keeps with --webhook-service or --webhook-url: set one of them"
	injected := len(w.annotations) > 0
	err := wrong(w.port < 1 || w.port > 65535, "--webhook-port is %d; it is a port from 1 to 65535", w.port)
	if err == nil && w.given() {
		err = w.place(new(registrations.Options))
	}
	if err == nil && w.clientCA != "" {
		if _, unread := pool(w.clientCA); unread != nil {
			err = cli.Usage("--webhook-client-ca-file: %v", unread)
		}
	}
	if err != nil {
		return err
	}
	switch w.source {
	case fromFiles:
		err = cmp.Or(
			cli.Readable("webhook-cert-dir", filepath.Join(w.certDir, "tls.crt")),
			cli.Readable("webhook-cert-dir", filepath.Join(w.certDir, "tls.key")),
			wrong(!w.given() && w.caFile != "", "--webhook-ca-file"+forRegistrations),
			wrong(!w.given() && injected, "--registration-annotations"+forRegistrations),
			wrong(w.caFile != "" && injected,
				"--webhook-ca-file and --registration-annotations are both set; the registrations' caBundle is either Holdfast's to fill in, from the file, or another operator's"),
		)
	case fromCA:
		return cmp.Or(
			wrong(!w.given(), "--webhook-cert-source is self-signed, which needs --webhook-service or --webhook-url: the certificate is made for that name"),
			wrong(w.caFile != "" || injected,
				"--webhook-cert-source is self-signed, so the registrations hold Holdfast's own CA: leave out --webhook-ca-file and --registration-annotations"),
			wrong(w.changed("webhook-cert-dir"),
				"--webhook-cert-source is self-signed, which has no files: leave out --webhook-cert-dir, or set --webhook-cert-source=files"),
		)
	default:
		return cli.Usage("--webhook-cert-source is %q; it is files or self-signed", w.source)
	}
	if err != nil || !w.given() || injected {
		return err
	}
	w.files = cmp.Or(w.caFile, filepath.Join(w.certDir, "ca.crt"))
	return cmp.Or(
		wrong(w.caFile == "" && !exists(w.files),
			"the registrations need the CA of the webhooks' certificate: set --webhook-ca-file (there is no %s), --registration-annotations where another operator fills it in, or --webhook-cert-source=self-signed", w.files),
		cli.Readable("webhook-ca-file", w.files),
	)
}

// pool reads a file of CAs, PEM.
func pool(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := x509.NewCertPool()
	if !out.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return out, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// newServer is the webhook server. Where the registrations are kept, shared knows its paths.
func (w *webhookFlags) newServer(source *registrations.Source, shared *registrations.Shared, log logr.Logger) *webhookserver.Server {
	o := webhookserver.Options{Host: w.host, Port: w.port, Certificate: source.GetCertificate, Registry: metrics.Registry, Log: log}
	if w.clientCA != "" {
		o.ClientCAs = func() (*x509.CertPool, error) { return pool(w.clientCA) }
	}
	if shared != nil {
		o.Known = shared.Known
	}
	return webhookserver.New(o)
}

// serve has the manager run what serves the webhooks and looks after their registrations, and ask whether this replica is ready.
// keeper learns when this replica is elected.
func (p *process) serve(elected *terms) (keeper *registrations.Registrar, err error) {
	f, w, recorder, meters := p.flags, &p.flags.webhooks, p.kept(), registrations.NewMetrics(metrics.Registry)
	keeper = &registrations.Registrar{API: p.api, Metrics: meters, Log: p.log.WithName("registrations")}
	var (
		time    = clock.RealClock{}
		trust   = registrations.NewTrust(time)
		first   = &registrations.FirstRead{Etcd: p.ring, Metrics: meters, Log: p.log.WithName("etcd"), Asked: p.asked}
		certLog = p.log.WithName("certificate")
		hosts   = []string{""}        // what the certificate is for
		shared  *registrations.Shared // nil where the registrations are not kept
	)
	if w.given() {
		options := registrations.Options{MachineNamespace: f.namespace, Identities: f.identities, Enforcement: f.enforcement, HoldfastNamespace: f.electNamespace}
		if f.mode == quorum.ModeFull {
			options.EtcdNamespace, options.QuorumGuard = f.etcdNamespace, f.guard
		}
		if err := w.place(&options); err != nil {
			return nil, err
		}
		if hosts, err = options.Hosts(); err != nil {
			return nil, err
		}
		keeper.Live, keeper.Writing = &registrations.Live{}, &registrations.Writing{Options: options, Events: recorder, LedAgo: elected.lock.ledAgo, Lease: elected.times.lease, Annotations: w.annotations}
		if len(w.annotations) == 0 { // else another operator says whom to trust
			keeper.Writing.Trust = trust
		}
		shared = registrations.NewShared(client.ObjectKey{Namespace: f.electNamespace, Name: sharedSecret}, p.api, keeper.Writing.Trust, time, p.log.WithName("shared"))
		keeper.Writing.Shared, keeper.Writing.Proof = shared, registrations.SelfCall(p.api, f.namespace)
	}
	source := registrations.NewSource(keeper.Live, hosts[0], time, meters, certLog)
	p.server = w.newServer(source, shared, p.log.WithName("server"))
	runnable := []manager.Runnable{p.server, first, keeper}
	checks := map[string]healthz.Checker{
		"webhooks": func(r *http.Request) error {
			if err := source.Loaded(r); err != nil {
				return err // the server's own check says nothing of the certificate
			}
			return p.server.StartedChecker()(r)
		},
		"etcd":        first.Check,
		"certificate": source.Loaded,
	}
	if shared != nil {
		runnable = append(runnable, shared)
		checks["path"], checks["registrations"] = shared.Check, source.Vouched()
	}
	var certificates manager.Runnable
	if w.source == fromCA {
		certificates = &registrations.SelfSigned{
			Secret: client.ObjectKey{Namespace: f.electNamespace, Name: caSecret}, Config: p.mgr.GetConfig(), API: p.api, Hosts: hosts, Events: recorder,
			Source: source, Trust: trust, Clock: time, Log: certLog,
		}
	} else if certificates, err = registrations.NewFiles(w.certDir, w.files, source, trust, certLog); err != nil {
		return nil, cli.Usage("%w", err)
	}
	for _, r := range append(runnable, source, certificates) {
		if err := p.mgr.Add(r); err != nil {
			return nil, fmt.Errorf("set up the webhooks' serving: %w", err)
		}
	}
	for name, check := range checks {
		if err := p.mgr.AddReadyzCheck(name, registrations.LogChanges(name, p.log.WithName("ready"), check)); err != nil {
			return nil, fmt.Errorf("set up /readyz: %w", err)
		}
	}
	return keeper, nil
}
