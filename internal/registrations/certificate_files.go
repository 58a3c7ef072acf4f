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
	offered *tls.Certificate

	caTrouble, pairTrouble trouble
}

// NewFiles reads the files. Without a CA file trust gets none.
func NewFiles(dir, ca string, source *Source, trust *Trust, log logr.Logger) (*Files, error) {
	f := &Files{dir: dir, source: source, ca: ca, trust: trust, log: log}
	if err := errors.Join(f.readCA(), f.readPair()); err != nil {
		return nil, err
	}
	return f, nil
}

// Start follows the files until the context ends.
func (f *Files) Start(ctx context.Context) error {
	return every(ctx, time.Second, nil, func() { f.look(ctx) })
}

// look takes what is in the files now. The CA comes first: whoever keeps the registrations is to know it
// before the certificate is served. What cannot be read changes nothing.
func (f *Files) look(ctx context.Context) {
	f.caTrouble.say(ctx, f.log, f.readCA(), "cannot read the CA; the registrations keep the previous one")
	f.pairTrouble.say(ctx, f.log, f.readPair(), "cannot read the webhooks' certificate; still serving the previous one")
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
