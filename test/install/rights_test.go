package install_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// grant is one verb on one thing: what a role gives, or a request needs.
type grant struct {
	verb, group, resource, name, namespace string // no name is any; no namespace is all, or none
}

func (g grant) String() string {
	what := g.resource
	if g.group != "" {
		what += "." + g.group
	}
	if g.name != "" {
		what += "/" + g.name
	}
	if g.namespace != "" {
		what += " in " + g.namespace
	}
	return g.verb + " " + what
}

// covers says whether a request that needs need passes by g.
func (g grant) covers(need grant) bool {
	return g.verb == need.verb && g.group == need.group && g.resource == need.resource &&
		(g.name == "" || g.name == need.name) && (g.namespace == "" || g.namespace == need.namespace)
}

// grants are what manifests give Holdfast's service account, one by one.
func grants(t *testing.T, manifests []byte) []grant {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{} // by kind, namespace and name of the role
	bound := map[string]string{}              // the same, to the namespace that it is bound in
	for _, u := range objects(t, manifests) {
		key := u.GetKind() + " " + u.GetNamespace() + " " + u.GetName()
		var (
			roleRef  rbacv1.RoleRef
			subjects []rbacv1.Subject
		)
		switch u.GetKind() {
		case "Role", "ClusterRole":
			var role rbacv1.ClusterRole // whose rules are a Role's
			convert(t, u.Object, &role)
			rules[key] = role.Rules
			continue
		case "RoleBinding", "ClusterRoleBinding":
			var binding rbacv1.ClusterRoleBinding
			convert(t, u.Object, &binding)
			roleRef, subjects = binding.RoleRef, binding.Subjects
		default:
			continue
		}
		if !slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == "ServiceAccount" && s.Namespace == namespace && s.Name == "holdfast"
		}) {
			continue
		}
		if roleRef.Kind == "ClusterRole" {
			bound["ClusterRole  "+roleRef.Name] = u.GetNamespace()
		} else {
			bound["Role "+u.GetNamespace()+" "+roleRef.Name] = u.GetNamespace()
		}
	}
	var out []grant
	for role, in := range bound {
		if len(rules[role]) == 0 {
			t.Errorf("%s is bound to Holdfast and not among the manifests, or empty", role)
		}
		for _, rule := range rules[role] {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, name := range names {
						for _, verb := range rule.Verbs {
							out = append(out, grant{verb: verb, group: group, resource: resource, name: name, namespace: in})
						}
					}
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b grant) int { return strings.Compare(a.String(), b.String()) })
	return out
}

func convert(t *testing.T, from map[string]any, to any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from, to); err != nil {
		t.Fatal(err)
	}
}

// asked is what the service account asked the API server for since the log was that long, and what of it was
// forbidden.
func (f *fixture) asked(since int64) (needs, forbidden []grant) {
	f.t.Helper()
	log, err := os.Open(f.sandbox.APIAuditLog())
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	if _, err := log.Seek(since, io.SeekStart); err != nil {
		f.t.Fatal(err)
	}
	seen := map[grant]bool{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			break // the line is being written
		}
		if event.User.Username != string(sandbox.Holdfast) || event.ObjectRef == nil {
			continue
		}
		o := event.ObjectRef
		need := grant{verb: event.Verb, group: o.APIGroup, resource: o.Resource, name: o.Name, namespace: o.Namespace}
		if o.Subresource != "" {
			need.resource += "/" + o.Subresource
		}
		if event.Annotations["authorization.k8s.io/decision"] == "forbid" && !slices.Contains(forbidden, need) {
			forbidden = append(forbidden, need)
		}
		if !seen[need] {
			seen[need] = true
			needs = append(needs, need)
		}
	}
	return needs, forbidden
}

// logged is how long the API server's audit log is.
func (f *fixture) logged() int64 {
	f.t.Helper()
	info, err := os.Stat(f.sandbox.APIAuditLog())
	if err != nil {
		f.t.Fatal(err)
	}
	return info.Size()
}

// exact holds the rights that manifests give against what was asked for since the log was that long: nothing
// was forbidden, and each right was used, or is among the spare, with the reason why it is there all the same.
func (f *fixture) exact(manifests []byte, since int64, spare map[string]string) {
	f.t.Helper()
	given := grants(f.t, manifests)
	for name := range spare {
		f.Expect(slices.ContainsFunc(given, func(g grant) bool { return g.String() == name })).To(gomega.BeTrue(), "%q is listed as spare, and not given", name)
	}
	f.Eventually(func(g gomega.Gomega) {
		needs, forbidden := f.asked(since)
		var idle []string
		for _, right := range given {
			if spare[right.String()] == "" && !slices.ContainsFunc(needs, right.covers) {
				idle = append(idle, right.String())
			}
		}
		g.Expect(idle).To(gomega.BeEmpty(), "rights that nothing used")
		var refused []string
		for _, need := range forbidden {
			refused = append(refused, need.String())
		}
		g.Expect(refused).To(gomega.BeEmpty(), "requests that were forbidden")
	}).WithTimeout(2*time.Minute).Should(gomega.Succeed(), func() string { _, no := f.asked(since); return fmt.Sprint("forbidden: ", no) })
}
