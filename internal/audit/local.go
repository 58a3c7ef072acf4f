package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
)

// local is a local log. The API server's log backend would write each failure to klog, with the record, and report it nowhere else.
type local struct {
	path     string
	out      *timeLimited
	counters counters
	log      logr.Logger
	complain rate.Sometimes
	failing  atomic.Bool // the last write did not work
}

func newLocal(path string, o Options, c counters) *local {
	l := &local{
		path: "(standard output)", out: &timeLimited{out: o.Stdout, patience: writeTimeout, turn: make(chan struct{}, 1)}, counters: c, log: o.Log,
		complain: rate.Sometimes{Interval: complainEvery},
	}
	if path != stdoutPath {
		l.path, l.out.out = path, newFile(path, o)
		_ = l.attempt([]byte("\n")) // so that a failure shows now, not at the first denial, and ends what a crash cut off
	}
	return l
}

// write writes one record, a line. After a failure an empty line comes first: a full disk may have cut off the line before.
func (l *local) write(line []byte) {
	if l.failing.Load() {
		line = append([]byte("\n"), line...)
	}
	if err := l.attempt(line); err != nil {
		l.counters.errors.Inc()
		return
	}
	l.counters.events.Inc()
}

// attempt writes, and keeps whether that worked.
func (l *local) attempt(p []byte) error {
	err := l.out.Write(p)
	was := l.failing.Swap(err != nil)
	switch {
	case err != nil:
		l.complain.Do(func() { l.log.Error(err, "the audit log cannot be written", "path", l.path) })
	case was:
		l.log.Info("the audit log is written again", "path", l.path)
	}
	return err
}

// ready tries again if the last write failed.
func (l *local) ready() error {
	if !l.failing.Load() {
		return nil
	}
	if err := l.attempt([]byte("\n")); err != nil {
		return fmt.Errorf("audit log %s cannot be written: %w", l.path, err)
	}
	return nil
}

// writeTimeout is how long an answer may wait for the local log.
const writeTimeout = 500 * time.Millisecond

var errHangs = errors.New("it takes no writes now: whatever is behind it hangs")

// timeLimited writes one at a time and has limited patience: a disk that hangs, or a pipe
// without a reader, must not hold up decisions. What it gave up on may still get written later.
type timeLimited struct {
	out      io.Writer
	patience time.Duration // how long one write waits
	turn     chan struct{} // holds something while out is being written
	hangs    atomic.Bool   // the last write was given up on: who finds it still there does not wait
}

func (w *timeLimited) Write(p []byte) error {
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	select {
	case w.turn <- struct{}{}:
	default:
		if w.hangs.Load() {
			return errHangs
		}
		select {
		case w.turn <- struct{}{}:
		case <-timer.C:
			return errHangs
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
		return err
	case <-timer.C:
		w.hangs.Store(true)
		return errHangs
	}
}
