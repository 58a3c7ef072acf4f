package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Contact is the result of asking one endpoint for its status.
type Contact struct {
	URL    string
	Status Status // what it said, if Err is nil
	Err    error
	// Silent: nothing answered, so either nothing listens there, or an etcd that serves no requests yet. An Err without Silent
	// means that something answered, but its answer cannot be used: a certificate is wrong, for example.
	Silent bool
}

// Contacts asks every endpoint that this client knows for its status, within Config.ReadTimeout. It needs no quorum.
func (c *Client) Contacts(ctx context.Context) []Contact {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	urls := c.endpoints()
	contacts := make([]Contact, len(urls))
	var asked sync.WaitGroup
	for i, u := range urls {
		asked.Go(func() {
			contacts[i] = Contact{URL: u}
			contacts[i].Status, contacts[i].Err = c.Status(ctx, u)
			if contacts[i].Err == nil || !quiet(contacts[i].Err) {
				return
			}
			// gRPC returns the same error for a closed port and for a wrong certificate.
			if err := c.handshake(ctx, u); err != nil {
				contacts[i].Err = failure{u, err}
				return
			}
			contacts[i].Silent = true
		})
	}
	asked.Wait()
	return contacts
}

// quiet reports whether an error means that no answer came.
func quiet(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	var f failure
	if errors.As(err, &f) {
		err = f.err
	}
	code := status.Code(err)
	var said rpctypes.EtcdError
	if errors.As(err, &said) {
		code = said.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled
}

// handshake returns why the TLS handshake with the server at a URL fails. It is nil if the handshake succeeds, and if
// nothing listens there or the server sends nothing.
func (c *Client) handshake(ctx context.Context, at string) error {
	u, err := url.Parse(at)
	if err != nil {
		return fmt.Errorf("%q is not a URL: %w", at, err)
	}
	c.mu.Lock()
	config := c.tls()
	c.mu.Unlock()
	config.ServerName, config.NextProtos = u.Hostname(), []string{"h2"}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil // nothing listens
	}
	defer func() { _ = raw.Close() }()
	conn := tls.Client(raw, config)
	if err = conn.HandshakeContext(ctx); err == nil {
		// A TLS 1.3 server refuses the client's certificate only after the handshake, so read a byte to see its alert. The wait
		// is short: a server that sends nothing has not refused.
		if err = conn.SetReadDeadline(time.Now().Add(c.cfg.ReadTimeout / 4)); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
