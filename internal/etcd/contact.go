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
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Contact is what came of asking one endpoint about itself.
type Contact struct {
	URL    string
	Status Status // what it said, if Err is nil
	Err    error
	// Silent: as far as can be told nobody is there, or an etcd that serves nobody yet. Without it there is
	// somebody whose answer cannot be used, for one because of the certificates.
	Silent bool
}

// Contacts asks every endpoint that this client knows about itself, within Config.ReadTimeout. It needs no quorum.
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
			if contacts[i].Err == nil {
				return
			}
			if !quiet(contacts[i].Err) {
				return
			}
			// gRPC says one and the same of a port that is closed and of a certificate that is wrong.
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

// Listed are the members as one of those that answer has them on its own disk. That needs no quorum, and may be old. There are none
// if nobody answers.
func (c *Client) Listed(ctx context.Context) []quorum.Member {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	list, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (*clientv3.MemberListResponse, error) {
		return conn.MemberList(ctx, clientv3.WithSerializable())
	})
	if err != nil {
		return nil
	}
	return members(list)
}

// quiet says whether an error means that no answer came.
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

// handshake returns why somebody who listens at a URL and this client do not agree on TLS. It is nil if
// they do, and if nobody listens or what listens says nothing.
func (c *Client) handshake(ctx context.Context, at string) error {
	u, err := url.Parse(at)
	if err != nil {
		return fmt.Errorf("%q is not a URL: %w", at, err)
	}
	c.mu.Lock()
	roots := c.roots
	c.mu.Unlock()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil // nobody listens
	}
	defer func() { _ = raw.Close() }()
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: u.Hostname(), NextProtos: []string{"h2"}, GetClientCertificate: c.clientCertificate,
	})
	if err = conn.HandshakeContext(ctx); err == nil {
		// A server of TLS 1.3 refuses the client's certificate after the handshake: its first byte tells. The wait
		// for that is short, since a server that has nothing to say is none that refuses.
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
