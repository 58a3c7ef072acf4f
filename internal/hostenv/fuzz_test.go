package hostenv_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
)

// FuzzEnvironment: what is read of an environment is written so that it reads the same, as lines and as
// variables.
func FuzzEnvironment(f *testing.F) {
	for _, seed := range []string{
		"", "ETCD_INITIAL_CLUSTER_STATE=new\n", "# why\nETCD_INITIAL_CLUSTER_STATE=existing\n",
		"ETCD_INITIAL_CLUSTER=a=https://10.0.0.1:2380,b=https://[::1]:2380,a=https://[::ffff:10.0.0.1]:2380\nETCD_INITIAL_CLUSTER_STATE=existing\nETCD_MEMBER_IDS=00ab=https://a.b:2380\n",
		"ETCD_INITIAL_CLUSTER==\nETCD_INITIAL_CLUSTER_STATE=existing\r\n", "ETCD_MEMBER_IDS=1=u://a,01=u://b\nETCD_INITIAL_CLUSTER_STATE=new",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := hostenv.Parse(text)
		if err != nil {
			return
		}
		again, err := hostenv.Parse(e.Text())
		if diff := cmp.Diff(e, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("as text: %v: %s", err, diff)
		}
		variables := map[string]string{}
		for line := range strings.Lines(e.Text()) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			variables[name] = value
		}
		again, err = hostenv.FromVariables(func(name string) string { return variables[name] })
		if diff := cmp.Diff(e, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("as variables: %v: %s", err, diff)
		}
	})
}

// FuzzURL: a URL is the same as itself, and whether two are the same does not depend on who asks.
func FuzzURL(f *testing.F) {
	f.Add("https://10.0.0.1:2380", "https://[::ffff:10.0.0.1]:2380")
	f.Add("https://A.b.:2380", "https://a.b:2380")
	f.Add("", " ")
	f.Fuzz(func(t *testing.T, a, b string) {
		if !hostenv.HasURL([]string{a}, a) {
			t.Errorf("%q is not itself", a)
		}
		one, other := hostenv.SameURLs([]string{a}, []string{b}), hostenv.SameURLs([]string{b}, []string{a})
		if one != other {
			t.Errorf("%q and %q are the same to one alone", a, b)
		}
	})
}
