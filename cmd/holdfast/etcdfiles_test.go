package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestEtcdSecretFlags: the files or the Secret, and how both are named.
func TestEtcdSecretFlags(t *testing.T) {
	pem := file(t, "any.pem", "x")
	kubeconfig := kubeconfig(t)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"both":              {[]string{"--etcd-secret=a/b", "--cert=" + pem}, []string{"--etcd-secret", "--cert"}},
		"no namespace":      {[]string{"--etcd-secret=b"}, []string{"--etcd-secret", `"b" is not NAMESPACE/NAME`}},
		"CA without Secret": {[]string{"--etcd-ca-configmap=a/b"}, []string{"--etcd-secret, which is missing"}},
		"neither":           {nil, []string{"--cacert is missing"}},
		"delay":             {[]string{"--etcd-secret=a/b", "--etcd-cert-dir=" + filepath.Join(t.TempDir(), "etcd"), "--shutdown-delay=2h", "--webhook-cert-source=self-signed", "--webhook-url=https://127.0.0.1:1"}, []string{"--shutdown-delay is 2h0m0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"run", "--endpoints=https://127.0.0.1:2379", "--kubeconfig=" + kubeconfig}, c.args...)
			status, _, stderr := typed(t, args...)
			if status != 2 {
				t.Errorf("status %d", status)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q does not hold %q", stderr, want)
				}
			}
		})
	}
}
