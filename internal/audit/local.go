package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
)

// local is the local log: the API server's log backend, on a writer that keeps the failures. The
// backend itself would tell of each one in klog, record and all, and of none to anybody else.
type local struct {
	audit.Backend
	path     string
	out      *timeLimited
	file     io.Closer // nil for standard output
	counters counters
	log      logr.Logger
	complain rate.Sometimes

	mu      sync.Mutex
	failing error // the last write's, nil if it worked
	missing int   // records not written since it last worked
}

func newLocal(o Options, out io.Writer, c counters) *local {
	l := &local{
		path: o.LogPath, out: &timeLimited{out: out, patience: writeTimeout, turn: make(chan struct{}, 1)}, counters: c, log: o.Log,
		complain: rate.Sometimes{Interval: complainEvery},
	}
	if l.path == stdoutPath {
		l.path = "(standard output)"
	}
	l.Backend = auditlog.NewBackend(l, auditlog.FormatJson, auditv1.SchemeGroupVersion)
	if l.file, _ = out.(io.Closer); l.file != nil {
		if _, err := l.out.Write([]byte("\n")); err != nil { // told now rather than at the first denial
			l.failing = err
			l.log.Error(err, "the audit log cannot be written", "path", l.path)
		}
	}
	return l
}

// Write takes one record, a whole line. It never fails; see failed. An empty line before it is no record: it ends one that was cut
// off, by a full disk here, and by a crash where the log is opened.
func (l *local) Write(p []byte) (int, error) {
	line := p
	l.mu.Lock()
	if l.failing != nil {
		line = append([]byte("\n"), p...)
	}
	l.mu.Unlock()
	if _, err := l.out.Write(line); err != nil {
		l.failed(err)
	} else {
		l.counters.events.Inc()
		l.works()
	}
	return len(p), nil
}

func (l *local) failed(err error) {
	l.counters.errors.Inc()
	l.mu.Lock()
	l.failing = err
	l.missing++
	missing := l.missing
	l.mu.Unlock()
	l.complain.Do(func() { l.log.Error(err, "the audit log cannot be written", "path", l.path, "missing", missing) })
}

func (l *local) works() {
	l.mu.Lock()
	was, missing := l.failing, l.missing
	l.failing, l.missing = nil, 0
	l.mu.Unlock()
	if was != nil {
		l.log.Info("the audit log is written again", "path", l.path, "missing", missing)
	}
}

func (l *local) ready() error {
	l.mu.Lock()
	err, missing := l.failing, l.missing
	l.mu.Unlock()
	if err == nil {
		return nil
	}
	if _, err = l.out.Write([]byte("\n")); err == nil {
		l.works()
		return nil
	}
	return fmt.Errorf("audit log %s cannot be written: %w (%d records are missing)", l.path, err, missing)
}

func (l *local) close() error {
	if l.file == nil || l.out.hangs.Load() {
		return nil
	}
	return l.file.Close()
}

// writeTimeout is how long an answer may wait for the local log.
const writeTimeout = 500 * time.Millisecond

var errHangs = errors.New("it takes no writes now: whatever is behind it hangs")

// timeLimited writes one at a time and has limited patience: a disk that hangs, or a pipe that
// nobody reads, is not to hold up decisions. What it gave up on may still get written later.
type timeLimited struct {
	out      io.Writer
	patience time.Duration // how long one write waits
	turn     chan struct{} // holds something while out is being written
	hangs    atomic.Bool   // the last write was given up on: who finds it still there does not wait
}

func (w *timeLimited) Write(p []byte) (int, error) {
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	select {
	case w.turn <- struct{}{}:
	default:
		if w.hangs.Load() {
			return 0, errHangs
		}
		select {
		case w.turn <- struct{}{}:
		case <-timer.C:
			return 0, errHangs
		}
	}
	w.hangs.Store(false)
	p = bytes.Clone(p) // it may be written after this returns
	done := make(chan error, 1)
	go func() {
		_, err := w.out.Write(p)
		<-w.turn
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return 0, err
		}
		return len(p), nil
	case <-timer.C:
		w.hangs.Store(true)
		return 0, errHangs
	}
}

// never is a size in megabytes at which nothing is rotated; lumberjack takes 0 for 100.
const never = math.MaxInt64 >> 20
