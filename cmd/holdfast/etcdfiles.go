package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/etcdcert"
)

// etcdFiles are the files with which etcd is reached: given, or fetched through the API.
type etcdFiles struct {
	caCert, cert, key        string
	secret, caConfigMap, dir string

	changed func(flag string) bool // whether it is on the command line
	source  *etcdcert.Source       // nil if the files are given
	api     corev1client.CoreV1Interface
}

func (e *etcdFiles) bind(f *pflag.FlagSet) {
	e.changed = f.Changed
	f.StringVar(&e.caCert, "cacert", "", "file with the CA of etcd's server certificates")
	f.StringVar(&e.cert, "cert", "", "file with the client certificate for etcd")
	f.StringVar(&e.key, "key", "", "file with the key of --cert")
	f.StringVar(&e.secret, "etcd-secret", "", "instead of these files: Secret NAMESPACE/NAME with the client certificate for etcd (tls.crt, tls.key, and ca.crt without --etcd-ca-configmap), read through the API and read again when it changes")
	f.StringVar(&e.caConfigMap, "etcd-ca-configmap", "", "ConfigMap NAMESPACE/NAME[:KEY] with the CA of etcd's server certificates, for --etcd-secret; KEY is ca-bundle.crt if it is left out")
	f.StringVar(&e.dir, "etcd-cert-dir", "/var/run/holdfast/etcd", "folder that the files of --etcd-secret are written to; best in memory")
}

// check wants either the files or the Secret.
func (e *etcdFiles) check() (err error) {
	if e.secret == "" {
		return cmp.Or(
			wrong(e.caConfigMap != "", "--etcd-ca-configmap goes with --etcd-secret, which is missing"),
			wrong(e.changed("etcd-cert-dir"), "--etcd-cert-dir goes with --etcd-secret, which is missing"),
			cli.Readable("cacert", e.caCert), cli.Readable("cert", e.cert), cli.Readable("key", e.key),
		)
	}
	if e.caCert != "" || e.cert != "" || e.key != "" {
		return cli.Usage("--etcd-secret comes instead of --cacert, --cert and --key: give one or the other")
	}
	if e.source, err = etcdcert.Parse(e.secret, e.caConfigMap, e.dir); err != nil {
		return cli.Usage("--etcd-secret, --etcd-ca-configmap: %v", err)
	}
	return nil
}

// fetch makes the files of --etcd-secret.
func (e *etcdFiles) fetch(ctx context.Context, config *rest.Config) error {
	if e.source == nil {
		return nil
	}
	var err error
	if e.api, err = corev1client.NewForConfig(config); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	if _, err := e.source.Fetch(ctx, e.api); err != nil {
		return err
	}
	e.caCert, e.cert, e.key = e.source.CAFile(), e.source.PairFile(), e.source.PairFile()
	return nil
}

// keep has the manager fetch them again and again.
func (e *etcdFiles) keep(mgr ctrl.Manager, log logr.Logger) error {
	if e.source == nil {
		return nil
	}
	if err := mgr.Add(&etcdcert.Refresher{Source: e.source, API: e.api, Log: log.WithName("etcd-certificate")}); err != nil {
		return fmt.Errorf("keep etcd's client certificate: %w", err)
	}
	return nil
}
