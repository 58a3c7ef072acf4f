package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
)

// TestVerifyBadCommandLines: one sentence on what to mend, and status 2.
func TestVerifyBadCommandLines(t *testing.T) {
	pem := file(t, "any.pem", "x")
	at := []string{"--cacert=" + pem, "--cert=" + pem, "--key=" + pem}
	good := append([]string{
		"verify", "membership", "--peer-url=https://10.0.0.1:2380", "--data-dir=/nowhere", "--endpoints=https://10.0.0.2:2379",
	}, at...)
	t.Setenv("ETCD_INITIAL_CLUSTER_STATE", "existing")
	t.Setenv("ETCD_MEMBER_IDS", "1=https://10.0.0.1:2380")
	with := func(more ...string) []string { return append(append([]string{}, good...), more...) }
	health := append([]string{"verify", "health"}, at...)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"unknown check":         {[]string{"verify", "quorum"}, []string{`"quorum"`, "holdfast verify --help"}},
		"peer URL":              {with("--peer-url=10.0.0.1"), []string{"--peer-url", "10.0.0.1"}},
		"peer URL with a path":  {with("--peer-url=https://10.0.0.1:2380/"), []string{"--peer-url", "https://10.0.0.1:2380/"}},
		"peer URL, no port":     {with("--peer-url=https://10.0.0.1"), []string{"--peer-url", "https://10.0.0.1"}},
		"data dir":              {with("--data-dir="), []string{"--data-dir is missing"}},
		"no dash":               {with("etcd"), []string{"after --", `"etcd"`}},
		"timeout":               {with("--timeout=0s"), []string{"--timeout"}},
		"no endpoints":          {slices.DeleteFunc(with(), func(arg string) bool { return strings.HasPrefix(arg, "--endpoints=") }), []string{"--endpoints is missing"}},
		"CA that is none":       {with(), []string{pem}},
		"health: two endpoints": {append(health, "--endpoint=https://a:1,https://b:1"), []string{"--endpoint", "this host's member"}},
		"storage: no data dir":  {[]string{"verify", "storage"}, []string{"--data-dir is missing"}},
		"storage: fsync":        {[]string{"verify", "storage", "--data-dir=/", "--max-fsync=-1s"}, []string{"--max-fsync"}},
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

// TestVerifyBadVariables: the same for the variables that have no flag.
func TestVerifyBadVariables(t *testing.T) {
	pem := file(t, "any.pem", "x")
	for name, c := range map[string]struct {
		variable, value, want string
	}{
		"no state":             {"ETCD_INITIAL_CLUSTER_STATE", "", "existing or new"},
		"a name instead of ID": {"ETCD_MEMBER_IDS", "master-0=https://10.0.0.1:2380", `"master-0" is not an etcd member ID`},
		"cluster without URL":  {"ETCD_INITIAL_CLUSTER", "a", `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("ETCD_INITIAL_CLUSTER_STATE", "existing")
			t.Setenv(c.variable, c.value)
			status, stdout, stderr := typed(t, "verify", "membership", "--peer-url=https://10.0.0.1:2380", "--data-dir=/nowhere",
				"--endpoints=https://10.0.0.2:2379", "--cacert="+pem, "--cert="+pem, "--key="+pem)
			if status != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "holdfast: "+c.variable) || !strings.Contains(stderr, c.want) {
				t.Errorf("status %d, want 2 and one line on stderr with %q; stdout %q, stderr %q", status, c.want, stdout, stderr)
			}
		})
	}
}

// TestVerifyEnvironment: an init container sets variables and few flags.
func TestVerifyEnvironment(t *testing.T) {
	pem := file(t, "any.pem", "x")
	for name, value := range map[string]string{
		"ETCD_INITIAL_CLUSTER_STATE": "existing", "ETCD_MEMBER_IDS": "1=https://10.0.0.1:2380", "ETCD_DATA_DIR": t.TempDir(),
		"ETCD_INITIAL_ADVERTISE_PEER_URLS": "https://10.0.0.1:2380", "ETCDCTL_ENDPOINTS": "https://10.0.0.1:2379,https://10.0.0.2:2379",
		"ETCDCTL_CACERT": pem, "ETCDCTL_CERT": pem, "ETCDCTL_KEY": pem,
	} {
		t.Setenv(name, value)
	}
	// All is understood but the certificate, which is none.
	if status, _, stderr := typed(t, "verify", "membership"); status != 2 || !strings.Contains(stderr, pem+" holds no PEM certificate") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	t.Setenv("ETCD_INITIAL_CLUSTER_STATE", "old")
	if status, _, stderr := typed(t, "verify", "membership"); status != 2 || !strings.Contains(stderr, `ETCD_INITIAL_CLUSTER_STATE is "old"`) {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

func TestVerifyStorage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := typed(t, "verify", "storage", "--data-dir="+dir, "--quota-backend-bytes=1024")
	if status != 0 || stderr != "" || !strings.Contains(stdout, "fsync ") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	status, _, stderr = typed(t, "verify", "storage", "--data-dir="+dir, "--max-fsync=1ns")
	if status != 1 || !strings.Contains(stderr, "more than --max-fsync 1ns") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}

	// Room for a snapshot is as much as the database takes. Both files have holes.
	database := filepath.Join(dir, "member", "snap", "db")
	if err := errors.Join(os.MkdirAll(filepath.Dir(database), 0o700), os.WriteFile(database, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for bytes, want := range map[int64]string{1 << 20: "there is room for one: it takes 1.0 MiB", 1 << 43: "no room for a snapshot, which takes 8.0 TiB"} {
		if err := os.Truncate(database, bytes); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := typed(t, "verify", "storage", "--data-dir="+dir, "--quota-backend-bytes=0")
		if status != 0 || !strings.Contains(stdout, want) {
			t.Errorf("status %d, stderr %q, no %q in %q", status, stderr, want, stdout)
		}
	}
}

func TestVerifyHelpTeaches(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"verify"}, []string{"membership", "storage", "health", "before etcd starts, each time", "readiness probe", "ETCDCTL_"}},
		{[]string{"verify", "membership", "--help"}, []string{"ETCD_MEMBER_IDS", "archived", "--quorum-wait", "power cut", "kubectl -n openshift-etcd get configmap etcd-membership"}},
		{[]string{"verify", "storage", "--help"}, []string{"fsync", "--max-fsync", "--quota-backend-bytes"}},
		{[]string{"verify", "health", "--help"}, []string{"--endpoint", "linearizable", "learner"}},
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

// TestEndpointsOfPeople: etcd's container may have ETCDCTL_ENDPOINTS for people, which name its own member alone. With an environment file
// the check goes by the file, and never by that variable.
func TestEndpointsOfPeople(t *testing.T) {
	t.Setenv("ETCDCTL_ENDPOINTS", "https://10.0.0.1:2379")
	var o membershipFlags
	o.bind(pflag.NewFlagSet("", pflag.ContinueOnError))
	if got := o.endpoints(hostenv.Environment{Members: hostenv.Peers{"2": {"https://10.0.0.2:2380"}}}); !slices.Equal(got, []string{"https://10.0.0.2:2379"}) {
		t.Errorf("etcd is asked at %q", got)
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o = membershipFlags{given: true}
	o.bind(f)
	if err := f.Parse([]string{"--endpoints=https://10.0.0.3:2379"}); err != nil {
		t.Fatal(err)
	}
	if got := o.endpoints(hostenv.Environment{}); !slices.Equal(got, []string{"https://10.0.0.3:2379"}) {
		t.Errorf("with the flag etcd is asked at %q", got)
	}
}

// TestBecome: the command gets what was checked and nothing else of what the environment says, and one that is not there is told.
func TestBecome(t *testing.T) {
	environment, err := hostenv.Parse("ETCD_INITIAL_CLUSTER=a=https://10.0.0.1:2380\nETCD_INITIAL_CLUSTER_STATE=existing\nETCD_MEMBER_IDS=1=https://10.0.0.1:2380\n")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("HOLDFAST_BECOMES") != "" {
		t.Fatal(become([]string{"sh", "-c", "env | grep ^ETCD_ | sort; exit 3"}, environment))
	}
	if err := become([]string{"no-such-etcd"}, environment); err == nil || !strings.Contains(err.Error(), "no-such-etcd") {
		t.Errorf("a command that is not there: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBecome$")
	cmd.Env = append(os.Environ(), "HOLDFAST_BECOMES=1", "ETCD_INITIAL_CLUSTER=b=https://10.0.0.2:2380", "ETCD_MEMBER_IDS=2=https://10.0.0.2:2380", "ETCD_NAME=a")
	out, err := cmd.Output()
	if exited := (*exec.ExitError)(nil); !errors.As(err, &exited) || exited.ExitCode() != 3 {
		t.Errorf("it ends as the command does, with 3: %v", err)
	}
	if want := "ETCD_INITIAL_CLUSTER=a=https://10.0.0.1:2380\nETCD_INITIAL_CLUSTER_STATE=existing\nETCD_NAME=a\n"; string(out) != want {
		t.Errorf("the command has\n%s\nand is to have\n%s", out, want)
	}
}

// TestCopyBinary: the copy is this binary and can be executed, twice in a row; a directory that is not there is told.
func TestCopyBinary(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if status, stdout, stderr := typed(t, "copy-binary", dir); status != 0 || !strings.Contains(stdout, dir) {
			t.Fatalf("status %d, stdout %q, stderr %q", status, stdout, stderr)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("in the directory are %v, %v; one file is to be there", entries, err)
	}
	copied := filepath.Join(dir, "holdfast")
	out, err := exec.CommandContext(t.Context(), copied, "-test.list=^TestCopyBinary$").Output()
	if err != nil || !strings.Contains(string(out), "TestCopyBinary") {
		t.Errorf("the copy says %q, %v", out, err)
	}
	if status, _, stderr := typed(t, "copy-binary", filepath.Join(dir, "none")); status != 1 || !strings.Contains(stderr, "none") {
		t.Errorf("no directory: status %d, stderr %q", status, stderr)
	}
	if status, _, stderr := typed(t, "copy-binary"); status != 2 || !strings.Contains(stderr, "takes one directory") {
		t.Errorf("no argument: status %d, stderr %q", status, stderr)
	}
}
