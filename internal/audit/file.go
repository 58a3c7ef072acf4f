package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"gopkg.in/natefinch/lumberjack.v2"
)

// file is a local log that is rotated. lumberjack rotates a file that one process writes, and replicas may share a host, in a rollout for
// example. So a process locks its file, and uses the next free name, audit-2.log for audit.log, while another one has the lock.
type file struct {
	lumberjack.Logger
	path string
	lock *fileutil.LockedFile // nil until there is one; the kernel releases it when the process ends
}

func newFile(path string, o Options) io.Writer {
	const never = math.MaxInt64 >> 20 // megabytes; lumberjack takes 0 for 100
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return &lumberjack.Logger{Filename: path, MaxSize: never} // a device is not to be renamed
	}
	return &file{path: path, Logger: lumberjack.Logger{
		MaxSize: cmp.Or(o.LogMaxSize, never), MaxAge: o.LogMaxAge, MaxBackups: o.LogMaxBackup, Compress: o.LogCompress,
	}}
}

// Write needs a lock first. Without one nothing is written, and the next call tries again.
func (f *file) Write(p []byte) (int, error) {
	if f.lock == nil {
		if err := f.claim(); err != nil {
			return 0, err
		}
	}
	return f.Logger.Write(p)
}

func (f *file) claim() (err error) {
	dir, name := filepath.Split(f.path)
	if err := os.MkdirAll(filepath.Clean(dir), 0o755); err != nil {
		return err
	}
	ext := filepath.Ext(name)
	for n := 2; ; n++ {
		f.lock, err = fileutil.TryLockFile(filepath.Join(dir, "."+name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if !errors.Is(err, fileutil.ErrLocked) {
			f.Filename = filepath.Join(dir, name)
			return err
		}
		name = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(filepath.Base(f.path), ext), n, ext)
	}
}
