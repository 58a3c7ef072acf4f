package registrations

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
)

// Files has the certificate in files that somebody else renews: tls.crt and tls.key in a folder, and the
// CA's. All are read every second, which needs no watch. Make it with NewFiles.
type Files struct {
	dir     string
	source  *Source
	ca      string // "" for none
	trust   *Trust
	log     logr.Logger
	said    [2]string // what was said last of the CA, and of the certificate
	offered *tls.Certificate
}

// NewFiles reads the files. Without a CA file trust is not told of any.
func NewFiles(dir, ca string, source *Source, trust *Trust, log logr.Logger) (*Files, error) {
	f := &Files{dir: dir, source: source, ca: ca, trust: trust, log: log}
	if err := errors.Join(f.readCA(), f.readPair()); err != nil {
		return nil, err
	}
	return f, nil
}

// NeedLeaderElection says that every replica runs it.
func (*Files) NeedLeaderElection() bool { return false }

// Start follows the files until the context ends.
func (f *Files) Start(ctx context.Context) error { return every(ctx, filesEvery, nil, f.look) }

// filesEvery is how often the files are read.
const filesEvery = time.Second

// look takes what is in the files now. The CA comes first: whoever keeps the registrations is to know it
// before the certificate is served. What cannot be read changes nothing, and is said once.
func (f *Files) look() {
	f.say(0, f.readCA(), "the CA before stays in the registrations")
	f.say(1, f.readPair(), "the webhooks' certificate before is served on")
}

func (f *Files) say(about int, err error, message string) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != f.said[about] && err != nil {
		f.log.Error(err, message)
	}
	f.said[about] = text
}

// readPair offers the certificate in the folder if it is another one.
func (f *Files) readPair() error {
	c, err := tls.LoadX509KeyPair(filepath.Join(f.dir, "tls.crt"), filepath.Join(f.dir, "tls.key"))
	if err != nil {
		return fmt.Errorf("the webhooks' certificate in %s: %w", f.dir, err)
	}
	if f.offered == nil || !slices.EqualFunc(c.Certificate, f.offered.Certificate, bytes.Equal) {
		f.offered = &c
		f.source.Offer(&c)
	}
	return nil
}

// readCA takes the CAs of the file.
func (f *Files) readCA() error {
	if f.ca == "" {
		return nil
	}
	bundle, err := os.ReadFile(f.ca)
	if err != nil {
		return fmt.Errorf("the CA of the webhooks' certificate: %w", err)
	}
	if err := f.trust.Set(bundle); err != nil {
		return fmt.Errorf("the CA of the webhooks' certificate, %s: %w", f.ca, err)
	}
	return nil
}
