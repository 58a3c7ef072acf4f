package monitoring

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay is a way to an address that can be cut, and mended.
type relay struct {
	address, to string

	mu       sync.Mutex
	listener net.Listener // nil while it is cut
	open     map[net.Conn]bool
}

// startRelay leads connections to an address until the test is over.
func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	r := &relay{address: address(t), to: to}
	r.mend(t)
	t.Cleanup(r.cut)
	return r
}

// mend lets connections through.
func (r *relay) mend(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener, r.open = listener, map[net.Conn]bool{}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // it is cut
			}
			go r.lead(listener, from)
		}
	}()
}

// cut ends the connections that stand, and refuses others.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != nil {
		_ = r.listener.Close()
	}
	r.listener = nil
	for c := range r.open {
		_ = c.Close()
	}
}

// lead joins a connection that came by a listener with one to the address, until either ends.
func (r *relay) lead(by net.Listener, from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	r.mu.Lock()
	if r.listener != by {
		r.mu.Unlock()
		return // it was cut meanwhile
	}
	open := r.open
	open[from] = true
	r.mu.Unlock()
	ended := make(chan error, 2)
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, err := io.Copy(pair[0], pair[1])
			ended <- err
		}()
	}
	<-ended // whoever ends first ends both
	_, _ = from.Close(), to.Close()
	<-ended
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(open, from)
}
