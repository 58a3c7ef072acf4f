package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"gopkg.in/natefinch/lumberjack.v2"
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
	file     *file // nil for standard output
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
	if l.file, _ = out.(*file); l.file != nil {
		if err := l.file.open(); err != nil { // told now rather than at the first denial
			l.failing = err
			l.log.Error(err, "the audit log cannot be written", "path", l.path)
		}
	}
	return l
}

// Write takes one record, a whole line. It never fails; see failed.
func (l *local) Write(p []byte) (int, error) {
	if _, err := l.out.Write(p); err != nil {
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
	// An empty line is no record. It also ends the one that a full disk may have cut off.
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

// file is a log file that lumberjack rotates. It follows its path if somebody else moves or removes
// the file, and starts a new line after one that was cut off: by a full disk, or by a crash.
type file struct {
	rotating lumberjack.Logger
	maxSize  int
	mu       sync.Mutex
	is       fs.FileInfo // what was last written to
	torn     bool        // it does not end in a newline
}

func newFile(o Options) *file {
	f := &file{maxSize: o.LogMaxSize, rotating: lumberjack.Logger{
		Filename: o.LogPath, MaxAge: o.LogMaxAge, MaxBackups: o.LogMaxBackup, Compress: o.LogCompress,
	}}
	if f.maxSize == 0 {
		f.maxSize = never
	}
	return f
}

// never is a size in megabytes at which nothing is rotated; lumberjack takes 0 for 100.
const never = math.MaxInt64 >> 20

// open makes sure that lumberjack will append to the path's file as it is now, and to nothing that it
// would move out of its way. Making the file here makes lumberjack open it with O_APPEND.
func (f *file) open() error {
	path := f.rotating.Filename
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = create(path)
	}
	if err != nil {
		return err
	}
	if err := loggable(info); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	if f.is != nil && os.SameFile(f.is, info) {
		return nil
	}
	if err := f.rotating.Close(); err != nil {
		return err
	}
	f.is, f.torn = info, false
	f.rotating.MaxSize = f.maxSize
	if !info.Mode().IsRegular() {
		f.rotating.MaxSize = never // /dev/null is not to be renamed after 100 MB
		return nil
	}
	f.torn = endsTorn(path, info.Size())
	return nil
}

func create(path string) (fs.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close())
}

// endsTorn is also true of a file that cannot be read: an empty line does no harm.
func endsTorn(path string, size int64) bool {
	if size == 0 {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], size-1)
	return errors.Join(err, f.Close()) != nil || last[0] != '\n'
}

// Write appends a whole line.
func (f *file) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(); err != nil {
		return 0, err
	}
	if f.torn {
		p = append([]byte("\n"), p...)
	}
	n, err := f.rotating.Write(p)
	if n > 0 {
		f.torn = err != nil
	}
	return n, err
}

// Close closes the file; the next Write opens it again.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.is = nil
	return f.rotating.Close()
}
