package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Config says how to reach etcd. The file names are those of etcdctl's flags.
type Config struct {
	// Endpoints are https URLs of voters to start from. They stay a fallback when the ring has moved.
	Endpoints []string

	CACert string // file, PEM: who signs etcd's server certificates. Read again when it changes
	Cert   string // file, PEM: the client certificate. Read again at each handshake
	Key    string // file, PEM: its key

	// Identity says who holds the lock, such as the pod's name.
	Identity string

	ReadTimeout   time.Duration // for a whole Read; 0 is 1 s
	ChangeTimeout time.Duration // for taking the lock, and for each change; 0 is 5 s

	// Limits has Read ask the members for their own limits while there is a learner (Member.MaxLearners).
	Limits bool

	// Logger gets what is logged nowhere else: changed endpoints, certificate files that went bad.
	Logger logr.Logger
}

// Client reads and changes the membership of one etcd: the cluster that its first good read met. A
// cluster restored from a snapshot is another one, see Restored. It is safe for concurrent use.
type Client struct {
	cfg   Config
	seeds []string

	unwell atomic.Bool // a member did not answer the last read. Only then the leader is asked how far the members are

	mu      sync.Mutex
	closed  bool
	conns   map[string]*clientv3.Client // one per endpoint, so that a call goes where it is meant to
	cluster uint64                      // ID of the etcd that this client is about, from its first good read
	sighted sighting                    // of a cluster that may have taken its place
	voters  []string                    // client URLs of the voters in the last good read
	last    string                      // the endpoint that answered it: asked first next time
	at      time.Time                   // when that was
	learned []string                    // client URLs that may be etcd's, until a good read says which are
	roots   *x509.CertPool
	rootAt  time.Time // modification time of the file that roots were read from
}

// New checks the configuration and reads the certificate files. It does not connect.
func New(cfg Config) (*Client, error) {
	cfg.ReadTimeout, cfg.ChangeTimeout = cmp.Or(cfg.ReadTimeout, time.Second), cmp.Or(cfg.ChangeTimeout, 5*time.Second)
	c := &Client{cfg: cfg, conns: map[string]*clientv3.Client{}}
	for _, e := range cfg.Endpoints {
		u, err := target(e)
		if err != nil {
			return nil, fmt.Errorf("etcd endpoint: %w", err)
		}
		c.seeds = append(c.seeds, u)
	}
	if len(c.seeds) == 0 {
		return nil, errors.New("no etcd endpoint is given")
	}
	var err error
	if c.roots, c.rootAt, err = readRoots(cfg.CACert); err != nil {
		return nil, err
	}
	if _, err := c.clientCertificate(nil); err != nil {
		return nil, err
	}
	return c, nil
}

// Close ends all connections. Calls under way fail, later ones too.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.keepOnly(nil)
}

// target is the normal form of a client URL, which is also the key of its connection. Only https
// passes: an answer that anybody could have given must not release a Machine.
func target(raw string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not a URL: %w", raw, err)
	case u.Scheme != "https":
		return "", fmt.Errorf("%q is not an https URL", raw)
	case u.Hostname() == "" || u.Port() == "":
		return "", fmt.Errorf("%q lacks a host or a port", raw)
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String(), nil
}

func readRoots(file string) (*x509.CertPool, time.Time, error) {
	// The time first: a file replaced in between is then read once more, not missed.
	info, err := os.Stat(file)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("etcd's CA certificate: %w", err)
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("etcd's CA certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, time.Time{}, fmt.Errorf("etcd's CA certificate: %s holds no PEM certificate", file)
	}
	return roots, info.ModTime(), nil
}

func (c *Client) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.cfg.Cert, c.cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("etcd's client certificate %s with key %s: %w", c.cfg.Cert, c.cfg.Key, err)
	}
	return &pair, nil
}

// refresh starts over with new connections when the CA file was replaced: a pool of roots cannot be
// exchanged under a connection that will handshake again.
func (c *Client) refresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if info, err := os.Stat(c.cfg.CACert); err != nil || info.ModTime().Equal(c.rootAt) || c.closed {
		return // a file that is missing for a moment is being replaced
	}
	roots, at, err := readRoots(c.cfg.CACert)
	if err != nil {
		c.cfg.Logger.Error(err, "Keeping the CA certificates read before")
		return
	}
	c.roots, c.rootAt = roots, at
	c.keepOnly(nil)
}

// tls is how a connection proves who is at either end. c.mu is held.
func (c *Client) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, GetClientCertificate: c.clientCertificate}
}

// dial makes a client of one endpoint. It connects with the first call. c.mu is held.
func (c *Client) dial(u string) (*clientv3.Client, error) {
	conn, err := clientv3.New(clientv3.Config{
		Endpoints: []string{u},
		TLS:       c.tls(),
		// One attempt. clientv3 otherwise repeats reads up to 100 times, and a write too if it knows
		// that it never left or if the server gave it up before our deadline. Where to ask next is
		// decided here, and a change is sent once.
		MaxUnaryRetries: 1,
		// A host that vanished without a word is noticed even if no call is under way.
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(), // every failure is in an error or a Why
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				// gRPC's own backoff grows to two minutes, and calls fail without a try meanwhile: a member
				// that is back would be reported dead for that long, and a learner that waits for its
				// promotion behind.
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
				MinConnectTimeout: 2 * time.Second,
			}),
			grpc.WithChainUnaryInterceptor(failFast),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client for %s: %w", u, err)
	}
	return conn, nil
}

// failFast ends a call when its endpoint cannot be reached, with the reason. clientv3 has calls wait
// until it can, which with one endpoint means until their deadline.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoker(ctx, method, req, reply, cc, append(slices.Clip(opts), grpc.WaitForReady(false))...)
}

// conn is the cached client of one endpoint.
func (c *Client) conn(raw string) (*clientv3.Client, error) {
	u, err := target(raw)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the etcd client is closed")
	}
	if conn := c.conns[u]; conn != nil {
		return conn, nil
	}
	conn, err := c.dial(u)
	if err != nil {
		return nil, err
	}
	c.conns[u] = conn
	return conn, nil
}

// maxLearned is how many endpoints are learned at most: whoever wrote them down might have written any number.
const maxLearned = 32

// Learn takes client URLs at which etcd may answer, in the place of those learned before: they are asked besides those
// that are known, until a read is good. They say where to ask and nothing else. Who answers proves by its certificate that
// it is an etcd of this CA. If it is of another cluster than this client's, the answer does not count; if this client
// has met none yet, all that answer must be of one, or the ring is unknown.
func (c *Client) Learn(urls []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var learned []string
	for _, raw := range urls {
		u, err := target(raw)
		if err == nil && len(learned) < maxLearned && !slices.Contains(learned, u) && !slices.Contains(c.seeds, u) {
			learned = append(learned, u)
		}
	}
	if slices.Equal(learned, c.learned) {
		return
	}
	c.cfg.Logger.Info("Asking for etcd elsewhere, too", "endpoints", learned, "before", c.learned)
	c.learned = learned
	c.keepOnly(slices.Concat(c.seeds, c.voters, learned))
}

// Answered is when the last good read was, zero if there was none.
func (c *Client) Answered() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// keepOnly closes the connections to other endpoints. c.mu is held.
func (c *Client) keepOnly(urls []string) {
	for u, conn := range c.conns {
		if !slices.Contains(urls, u) {
			_ = conn.Close()
			delete(c.conns, u)
		}
	}
}

// endpoints are where to ask, in this order: the one that answered last, the voters, the seeds, what was learned.
func (c *Client) endpoints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, u := range slices.Concat([]string{c.last}, c.voters, c.seeds, c.learned) {
		if u != "" && !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

// follow takes the members of a good read as where to ask from now on. Learners are not among them,
// since they refuse most calls; their connections are kept all the same for their own status.
func (c *Client) follow(answered string, cluster uint64, members []quorum.Member) {
	var voters []string
	keep := slices.Clone(c.seeds)
	for i := range members {
		for _, raw := range members[i].ClientURLs {
			u, err := target(raw)
			if err != nil {
				continue
			}
			keep = append(keep, u)
			if !members[i].Learner {
				voters = append(voters, u)
			}
		}
	}
	slices.Sort(voters)

	c.mu.Lock()
	defer c.mu.Unlock()
	if cluster != c.cluster {
		return // of the one before a restore that this client followed meanwhile
	}
	if len(voters) > 0 && !slices.Equal(voters, c.voters) {
		c.cfg.Logger.Info("Following etcd's voters", "endpoints", voters, "before", c.voters)
		c.voters = voters
	}
	c.last, c.at, c.learned, c.sighted = answered, time.Now(), nil, sighting{}
	if !slices.Contains(keep, answered) {
		c.last = "" // a member that has left the list may still know no better for a moment
	}
	c.keepOnly(keep)
}

// headStart is how long an endpoint is asked alone before the next one is asked as well.
const headStart = 100 * time.Millisecond

// ask puts one call to several endpoints and takes the first good answer, with the endpoint it came
// from. The next endpoint is asked when one has failed or has not answered within its head start, so
// that a dead one costs no more than that. The call must be one that may be made twice.
func ask[T any](ctx context.Context, c *Client, urls []string, call func(context.Context, *clientv3.Client) (T, error)) (T, string, error) {
	type answer struct {
		value T
		url   string
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	wait := headStart
	if by, ok := ctx.Deadline(); ok { // every one gets its turn
		wait = min(wait, time.Until(by)/time.Duration(len(urls)+1))
	}
	answers := make(chan answer, len(urls)) // so that no goroutine blocks for ever
	var failed failures
	open := map[string]bool{} // without an answer so far, asked or not
	for _, u := range urls {
		open[u] = true
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for n := 0; len(open) > 0; {
		select {
		case <-next.C:
			if n == len(urls) {
				continue
			}
			u := urls[n]
			n++
			next.Reset(wait)
			go func() {
				a := answer{url: u}
				var conn *clientv3.Client
				if conn, a.err = c.conn(u); a.err == nil {
					a.value, a.err = call(ctx, conn)
				}
				answers <- a
			}()
		case a := <-answers:
			if a.err == nil {
				return a.value, a.url, nil
			}
			delete(open, a.url)
			failed = append(failed, failure{a.url, a.err})
			next.Reset(0)
		case <-ctx.Done():
			for _, u := range urls {
				if open[u] {
					failed = append(failed, failure{u, ctx.Err()})
				}
			}
			open = nil
		}
	}
	var none T
	return none, "", failed
}

// failure is why one endpoint gave no good answer.
type failure struct {
	url string
	err error
}

func (f failure) Error() string { return f.url + ": " + reason(f.err) }
func (f failure) Unwrap() error { return f.err }

// failures is why none did, for people on one line.
type failures []error

func (f failures) Error() string {
	if len(f) == 0 {
		return "there is no endpoint to ask"
	}
	var out []string
	for _, one := range f {
		out = append(out, one.Error())
	}
	return strings.Join(out, "; ")
}

func (f failures) Unwrap() []error { return f }

// volatile is what differs at each try: the port that a connection leaves from, and the time of day.
var volatile = regexp.MustCompile(`:\d+(->)|(current time) \S+`)

// reason is an error of a call, for people: without gRPC's wrapping, and the same at each try.
func reason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	if s, ok := status.FromError(err); ok {
		return volatile.ReplaceAllString(unwrapped(s.Message()), "$1$2")
	}
	return volatile.ReplaceAllString(err.Error(), "$1$2")
}

// unwrapped is what gRPC says of a connection, without the two wrappings of its own. They are longer than the cause, which a text that
// is cut short would lose.
func unwrapped(message string) string {
	if _, quoted, ok := strings.Cut(message, "connection error: desc = "); ok {
		if cause, err := strconv.Unquote(quoted); err == nil {
			return strings.TrimPrefix(cause, "transport: ")
		}
	}
	return message
}
