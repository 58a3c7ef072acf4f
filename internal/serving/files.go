package serving

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Files has the certificate in files that somebody else renews: tls.crt and tls.key in a folder, and the
// CA's. All are read again when they change. Make it with NewFiles.
type Files struct {
	watcher *certwatcher.CertWatcher
	source  *Source
	ca      string // "" for none
	trust   *Trust
	log     logr.Logger
	said    string
	offered *tls.Certificate
}

// NewFiles reads the files. Without a CA file trust is not told of any.
func NewFiles(dir, ca string, source *Source, trust *Trust, log logr.Logger) (*Files, error) {
	watcher, err := certwatcher.New(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("the webhooks' certificate in %s: %w", dir, err)
	}
	f := &Files{watcher: watcher, source: source, ca: ca, trust: trust, log: log}
	if ca != "" {
		if err := f.readCA(); err != nil {
			return nil, err
		}
	}
	f.look()
	return f, nil
}

// NeedLeaderElection says that every replica runs it.
func (*Files) NeedLeaderElection() bool { return false }

// Start follows the files until the context ends.
func (f *Files) Start(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	f.watcher.WithWatchInterval(2 * filesEvery).RegisterCallback(func(tls.Certificate) { kick(wake) })
	ended := make(chan error, 1)
	go func() { ended <- f.watcher.Start(ctx) }()
	if err := every(ctx, filesEvery, wake, f.look); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("follow the webhooks' certificate: %w", err)
	}
	return nil
}

// filesEvery is how often files are read whose change nobody told of.
const filesEvery = time.Second

// look takes what is in the files now. The CA comes first: whoever keeps the registrations is to know it
// before the certificate is served.
func (f *Files) look() {
	said := ""
	if f.ca != "" {
		if err := f.readCA(); err != nil {
			said = err.Error()
		}
	}
	if said != f.said && said != "" {
		f.log.Info("the CA before stays in the registrations", "reason", said)
	}
	f.said = said
	// What the watcher tells of may be older than what it has: changes are told in no order.
	if c, err := f.watcher.GetCertificate(nil); err == nil && c != f.offered {
		f.offered = c
		f.source.Offer(c)
	}
}

// readCA takes the CAs of the file.
func (f *Files) readCA() error {
	bundle, err := os.ReadFile(f.ca)
	if err != nil {
		return fmt.Errorf("the CA of the webhooks' certificate: %w", err)
	}
	if err := f.trust.Set(bundle); err != nil {
		return fmt.Errorf("the CA of the webhooks' certificate, %s: %w", f.ca, err)
	}
	return nil
}
