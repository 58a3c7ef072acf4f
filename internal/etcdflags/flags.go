// Package etcdflags describes a connection to etcd on a command line: by etcdctl's flags, or by its
// variables ETCDCTL_*. Its errors are cli.UsageErrors that name the flag.
package etcdflags

import (
	"cmp"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-dev/holdfast/internal/cli"
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
	if err := cmp.Or(CheckEndpoints(c.Endpoints), cli.Readable("cacert", c.CACert), cli.Readable("cert", c.Cert), cli.Readable("key", c.Key)); err != nil {
		return nil, err
	}
	client, err := etcd.New(etcd.Config{Endpoints: c.Endpoints, CACert: c.CACert, Cert: c.Cert, Key: c.Key, Limits: true})
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	return client, nil
}

// CheckEndpoints wants https URLs with a host.
func CheckEndpoints(endpoints []string) error {
	if len(endpoints) == 0 {
		return cli.Usage("--endpoints is missing: etcd's client URLs, such as https://10.0.0.1:2379,https://10.0.0.2:2379")
	}
	for _, e := range endpoints {
		if u, err := url.Parse(e); err != nil || u.Host == "" || u.Scheme != "https" {
			return cli.Usage("--endpoints: %q is no https URL such as https://10.0.0.1:2379", e)
		}
	}
	return nil
}
