package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// typed runs the command line as a person would.
func typed(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = execute(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

// file makes a file with that content.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBadCommandLines(t *testing.T) {
	pem := file(t, "any.pem", "x")
	certs := filepath.Dir(file(t, "tls.crt", "x"))
	if err := os.WriteFile(filepath.Join(certs, "tls.key"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := []string{"run", "--endpoints=https://127.0.0.1:2379", "--cacert=" + pem, "--cert=" + pem, "--key=" + pem, "--webhook-cert-dir=" + certs}
	with := func(more ...string) []string { return append(append([]string{}, good...), more...) }
	for name, c := range map[string]struct {
		args []string
		want []string // all in one line of stderr
	}{
		"unknown command":         {[]string{"guard"}, []string{`"guard"`, "holdfast --help"}},
		"unknown flag":            {with("--modus=full"), []string{"--modus", "holdfast run --help"}},
		"an argument":             {with("now"), []string{`"now"`}},
		"mode":                    {with("--mode=half"), []string{"--mode", `"half"`, "guard", "full"}},
		"no such enforcement":     {with("--enforcement=dryrun"), []string{"--enforcement", "dryrun", "enforce, warn or audit"}},
		"full mode enforces":      {with("--mode=full", "--enforcement=warn", "--quorum-guard-image=a"), []string{"--enforcement=warn", "guard mode"}},
		"its policies, too":       {[]string{"manifests", "--webhook-url=https://a", "--webhook-ca-file=" + pem, "--etcd-namespace=openshift-etcd", "--enforcement=audit"}, []string{"--enforcement=audit", "guard mode"}},
		"no image":                {with("--mode=full"), []string{"--quorum-guard-image", "HOLDFAST_IMAGE", "--quorum-guard=false"}},
		"endpoint without scheme": {with("--endpoints=10.0.0.1:2379"), []string{"--endpoints", "10.0.0.1:2379"}},
		"plain endpoint":          {with("--endpoints=http://10.0.0.1:2379"), []string{"--endpoints", "http://10.0.0.1:2379"}},
		"no CA":                   {with("--cacert=/nowhere/ca.crt"), []string{"--cacert", "/nowhere/ca.crt"}},
		"no certificate":          {with("--cert="), []string{"--cert is missing"}},
		"no webhook certificate":  {with("--webhook-cert-dir=/nowhere"), []string{"--webhook-cert-dir", "/nowhere/tls.crt"}},
		"no kubeconfig":           {with("--kubeconfig=/nowhere/config"), []string{"--kubeconfig", "/nowhere/config"}},
		"CA that is none":         {with("--kubeconfig=" + kubeconfig(t)), []string{pem}},
		"negative replicas":       {with("--desired-replicas=-3"), []string{"--desired-replicas", "-3", "3 or 5"}},
		"max deleting":            {with("--max-deleting=-2"), []string{"--max-deleting", "-2"}},
		"another's conditions":    {with("--cluster-operator=etcd"), []string{"--cluster-operator", "cluster-etcd-operator"}},
		"port":                    {with("--webhook-port=70000"), []string{"--webhook-port", "70000"}},
		"custodian pattern":       {with("--custodians=system:*"), []string{"--custodians", "system:*"}},
		"empty custodian":         {with("--custodians=a,,b"), []string{"--custodians", "empty"}},
		"no custodian":            {with("--custodians="), []string{"--custodians", "empty"}},
		"no status writer":        {[]string{"manifests", "--webhook-url=https://a", "--webhook-ca-file=" + pem, "--status-writers="}, []string{"--status-writers", "empty"}},
		"two lines":               {with("--automation-users=robot-a\nrobot-b"), []string{"--automation-users", "one line"}},
		"everybody a robot":       {with("--automation-users=robot,*"), []string{"--automation-users", `"*"`, "everybody"}},
		"every group a robot":     {with("--automation-users=system:authenticated"), []string{"--automation-users", "system:authenticated", "everybody"}},
		"a group of persons":      {with("--automation-users=*", "--escape-hatch-users=sre", "--max-deleting=-2"), []string{"--max-deleting"}}, // the first two are fine
		"everybody a person":      {with("--escape-hatch-users=*"), []string{"--escape-hatch-users", `"*"`, "every service account"}},
		"all system users people": {with("--escape-hatch-users=system:*"), []string{"--escape-hatch-users", "system:*", "every service account"}},
		"all accounts people":     {with("--escape-hatch-users=system:serviceaccounts"), []string{"--escape-hatch-users", "system:serviceaccounts", "every service account"}},
		"namespace":               {with("--machine-namespace=a b"), []string{"--machine-namespace", `"a b"`}},
		"timeout":                 {with("--member-dead-timeout=0s"), []string{"--member-dead-timeout"}},
		"duration":                {with("--learner-stall-timeout=soon"), []string{"--learner-stall-timeout", "soon"}},
		"manifests without URL":   {[]string{"manifests", "--webhook-ca-file=" + pem}, []string{"--webhook-url"}},
		"status writer pattern":   {[]string{"manifests", "--webhook-url=https://a", "--webhook-ca-file=" + pem, "--status-writers=system:*"}, []string{"--status-writers", "system:*"}},
		"manifests plain URL":     {[]string{"manifests", "--webhook-url=http://a", "--webhook-ca-file=" + pem}, []string{"--webhook-url", "http://a"}},
		"manifests without CA":    {[]string{"manifests", "--webhook-url=https://a", "--webhook-ca-file=/nowhere"}, []string{"--webhook-ca-file", "/nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := typed(t, c.args...)
			if status != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "holdfast: ") {
				t.Errorf("status %d, want 2 and one line on stderr; stdout %q, stderr %q", status, stdout, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q does not hold %q", stderr, want)
				}
			}
		})
	}
}

// kubeconfig is a file that names a cluster on a port that nobody listens on.
func kubeconfig(t *testing.T) string {
	return file(t, "config", `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u"}]}`)
}

func TestHelpTeaches(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{}, []string{"run", "manifests", "version", "EtcdQuorumOperator"}},
		{[]string{"run", "--help"}, []string{"--endpoints", "--mode", "guard mode", "holdfast run --mode full"}},
		{[]string{"manifests", "--help"}, []string{"--webhook-url", "kubectl apply"}},
		{[]string{"version"}, []string{"holdfast "}},
	} {
		status, stdout, stderr := typed(t, c.args...)
		if status != 0 || stderr != "" {
			t.Errorf("%q: status %d, stderr %q", c.args, status, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%q does not mention %q:\n%s", c.args, want, stdout)
			}
		}
	}
}
