package webhookserver

import (
	"context"
	"net"
	"slices"
	"sync"
)

// listener bounds the connections of strangers: those that have not sent a request to a known path yet.
// One more than the bound, and the oldest is closed of the address that has the most. So whoever opens
// connections takes places from his own, and the API server needs one for a few milliseconds.
type listener struct {
	net.Listener
	bound   int
	evicted func()

	mu        sync.Mutex
	strangers []*conn // the oldest first
}

func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, from: accepted.RemoteAddr().String(), of: l}
	if host, _, err := net.SplitHostPort(c.from); err == nil {
		c.from = host
	}
	l.mu.Lock()
	l.strangers = append(l.strangers, c)
	var oldest *conn
	if len(l.strangers) > l.bound {
		oldest = l.crowding()
	}
	l.mu.Unlock()
	if oldest != nil {
		l.evicted()
		_ = oldest.Close() // it may have closed itself meanwhile
	}
	return c, nil
}

// crowding is the oldest connection of the address that has the most. l.mu is held.
func (l *listener) crowding() *conn {
	count := map[string]int{}
	var of *conn
	for _, c := range slices.Backward(l.strangers) { // so that of several connections the last one met is the oldest
		if count[c.from]++; of == nil || count[c.from] >= count[of.from] {
			of = c
		}
	}
	return of
}

// conn is a connection, a stranger's at first.
type conn struct {
	net.Conn
	from string // the address
	of   *listener
}

// known takes it from the strangers' places.
func (c *conn) known() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.strangers = slices.DeleteFunc(c.of.strangers, func(stranger *conn) bool { return stranger == c })
}

func (c *conn) Close() error {
	c.known()
	return c.Conn.Close()
}

// connKey is where a request's context has its connection.
type connKey struct{}

// withConn is an http.Server's ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = over.NetConn() // under TLS
	}
	return context.WithValue(ctx, connKey{}, c)
}
