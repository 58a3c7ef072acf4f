package audit

import (
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
)

// Options say where records go. Make them with NewOptions; the fields with a flag are named like it.
type Options struct {
	LogPaths     []string // local logs, each of which gets all records; - is Stdout
	LogMaxSize   int      // megabytes at which a file is rotated, 0 is never
	LogMaxAge    int      // days for which rotated files are kept, 0 is for ever
	LogMaxBackup int      // rotated files that are kept, 0 is all
	LogCompress  bool     // rotated files are compressed with gzip

	WebhookConfigFile string // kubeconfig of the remote sink, empty is none

	Stdout     io.Writer             // for path -
	Registerer prometheus.Registerer // required; takes the counters holdfast_audit_*
	Log        logr.Logger           // says when a sink fails and when it recovers
}

// NewOptions are the options without flags: no sink, and kube-apiserver's numbers.
func NewOptions() Options {
	return Options{LogMaxSize: 100, LogMaxAge: 366, LogMaxBackup: 100, Stdout: os.Stdout}
}

// AddFlags adds the flags, named like kube-apiserver's.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.LogPaths, "audit-log-path", o.LogPaths, "files that each decision is written to before it is answered, as an audit.k8s.io/v1 Event; - for standard output, empty for none; the flag may be given several times")
	f.IntVar(&o.LogMaxSize, "audit-log-maxsize", o.LogMaxSize, "megabytes at which the audit log is rotated; 0 for never")
	f.IntVar(&o.LogMaxAge, "audit-log-maxage", o.LogMaxAge, "days to keep rotated audit logs; 0 for ever")
	f.IntVar(&o.LogMaxBackup, "audit-log-maxbackup", o.LogMaxBackup, "rotated audit logs to keep; 0 for all")
	f.BoolVar(&o.LogCompress, "audit-log-compress", o.LogCompress, "compress rotated audit logs with gzip")
	f.StringVar(&o.WebhookConfigFile, "audit-webhook-config-file", o.WebhookConfigFile, "kubeconfig of a server that is sent the records, too; empty for none")
}

// Validate finds the first thing wrong with the flags and says so in a sentence that names it.
func (o *Options) Validate() error {
	for flag, value := range map[string]int{
		"audit-log-maxsize": o.LogMaxSize, "audit-log-maxage": o.LogMaxAge, "audit-log-maxbackup": o.LogMaxBackup,
	} {
		if value < 0 {
			return fmt.Errorf("--%s is %d; it is 0 or more", flag, value)
		}
	}
	// A disk that is not there today is no reason to leave the cluster unguarded; a slip of the pen is.
	for _, path := range o.LogPaths {
		if info, err := os.Stat(path); err == nil && path != stdoutPath {
			if err := loggable(info); err != nil {
				return fmt.Errorf("--audit-log-path %s: %w", path, err)
			}
		}
	}
	if o.WebhookConfigFile != "" && len(o.LogPaths) == 0 {
		return fmt.Errorf("--audit-webhook-config-file needs --audit-log-path as well (- is standard output): that log keeps what the server does not take in time")
	}
	return nil
}

// stdoutPath is the path that means standard output.
const stdoutPath = "-"

// loggable says why a file cannot be the local log. A pipe without a reader would block for ever, and
// what rotates the log would move a folder out of the way.
func loggable(info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsRegular(), mode&fs.ModeCharDevice != 0:
		return nil
	case mode.IsDir():
		return fmt.Errorf("it is a folder; name a file in it")
	default:
		return fmt.Errorf("it is neither a file nor a character device; for standard output use -")
	}
}
