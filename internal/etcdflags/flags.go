// Package etcdflags describes a connection to etcd on a command line: by etcdctl's flags, or by its
// variables ETCDCTL_*. Its errors are about what was typed, and name the flag.
package etcdflags

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-dev/holdfast/internal/etcd"
)

// Flags are how to reach etcd.
type Flags struct {
	Endpoints         []string
	CACert, Cert, Key string // files
}

// Bind adds the flags of the files.
func (c *Flags) Bind(f *pflag.FlagSet) {
	f.StringVar(&c.CACert, "cacert", os.Getenv("ETCDCTL_CACERT"), "file with the CA of etcd's server certificates (ETCDCTL_CACERT)")
	f.StringVar(&c.Cert, "cert", os.Getenv("ETCDCTL_CERT"), "file with the client certificate for etcd (ETCDCTL_CERT)")
	f.StringVar(&c.Key, "key", os.Getenv("ETCDCTL_KEY"), "file with the key of --cert (ETCDCTL_KEY)")
}

// BindEndpoints adds the flag of the endpoints.
func (c *Flags) BindEndpoints(f *pflag.FlagSet) {
	var voters []string
	if value := os.Getenv("ETCDCTL_ENDPOINTS"); value != "" {
		voters = strings.Split(value, ",")
	}
	f.StringSliceVar(&c.Endpoints, "endpoints", voters, "client URLs of etcd's voters (ETCDCTL_ENDPOINTS)")
}

// Open checks what was typed. It does not connect.
func (c *Flags) Open() (*etcd.Client, error) {
	for _, err := range []error{CheckEndpoints(c.Endpoints), Readable("cacert", c.CACert), Readable("cert", c.Cert), Readable("key", c.Key)} {
		if err != nil {
			return nil, err
		}
	}
	return etcd.New(etcd.Config{Endpoints: c.Endpoints, CACert: c.CACert, Cert: c.Cert, Key: c.Key, Limits: true})
}

// CheckEndpoints wants https URLs with a host.
func CheckEndpoints(endpoints []string) error {
	if len(endpoints) == 0 {
		return errors.New("--endpoints is missing: etcd's client URLs, such as https://10.0.0.1:2379,https://10.0.0.2:2379")
	}
	for _, e := range endpoints {
		if u, err := url.Parse(e); err != nil || u.Host == "" || u.Scheme != "https" {
			return fmt.Errorf("--endpoints: %q is no https URL such as https://10.0.0.1:2379", e)
		}
	}
	return nil
}

// Readable wants a flag's file to be there and open.
func Readable(flag, path string) error {
	if path == "" {
		return fmt.Errorf("--%s is missing", flag)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return f.Close()
}
