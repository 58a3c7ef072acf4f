package waysin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
)

const within = 5 * time.Minute

// cluster is a sandbox and the identities that act on it.
type cluster struct {
	*sandbox.Sandbox
	admin   client.Client
	kubectl string
	scratch string // for kubectl's files

	machineAPI client.Client
	operator   client.Client
	guard      bool // in guard mode each row is sent once: dry if it may only be dry
}

func start(t *testing.T, mode string) *cluster {
	t.Helper()
	s := sandboxtest.Start(t, sandbox.Options{HoldfastReplicas: 2, Mode: mode})
	if mode == "guard" {
		sandboxtest.Operate(t, s, len(masters()))
	}
	c := &cluster{Sandbox: s, scratch: t.TempDir()}
	var err error
	if c.kubectl, err = assets.Path("kubectl"); err != nil {
		t.Fatal(err)
	}
	c.admin, _ = c.as(t, sandbox.Admin)
	c.machineAPI, _ = c.as(t, sandbox.MachineAPI)
	c.operator, _ = c.as(t, sandbox.EtcdOperator)
	eventually(t, func(ctx context.Context) error {
		for _, name := range masters() {
			if m := machineapi.Machine(c.get(ctx, t, name)); !m.Protected() || len(m.OwnEvidence().MemberIDs) == 0 {
				return fmt.Errorf("Machine %s is not adopted", name)
			}
		}
		return nil
	})
	return c
}

// eventually asks again until there is no error.
func eventually(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	NewWithT(t).Eventually(t.Context(), ask).WithTimeout(within).WithPolling(100 * time.Millisecond).Should(Succeed())
}

func masters() []string { return []string{"master-0", "master-1", "master-2"} }

// warnings collects the Warnings of one request.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, text)
}

// as is a client of that identity, and what it is warned of: by its token, or by impersonation
// where the sandbox has none.
func (c *cluster) as(t *testing.T, who sandbox.Identity) (client.Client, *warnings) {
	t.Helper()
	config := c.Impersonate(string(who), who.Groups()...)
	if _, err := os.Stat(c.Kubeconfig(who)); err == nil {
		config = c.Config(who)
	}
	heard := &warnings{}
	config = rest.CopyConfig(config)
	config.WarningHandler = heard
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.Install(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	options := client.Options{Scheme: scheme}
	if c.admin != nil {
		options.Mapper = c.admin.RESTMapper()
	}
	cl, err := client.New(config, options)
	if err != nil {
		t.Fatal(err)
	}
	return cl, heard
}

// get is the Machine as stored.
func (c *cluster) get(ctx context.Context, t *testing.T, name string) *machinev1beta1.Machine {
	t.Helper()
	m := &machinev1beta1.Machine{}
	if err := c.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: name}, m); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return m
}

// guarded is what the guard protects of all three Machines, for comparison. A Machine that is gone
// has no UID.
func (c *cluster) guarded(ctx context.Context, t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, name := range masters() {
		m := c.get(ctx, t, name)
		out[name] = map[string]any{
			"uid": m.UID, "hooks": m.Spec.LifecycleHooks, "finalizers": m.Finalizers, "deleting": m.DeletionTimestamp != nil,
			"role": m.Labels[quorum.RoleLabel], "type": m.Labels[quorum.TypeLabel], "evidence": m.Annotations[quorum.EvidenceAnnotation],
			"override": m.Annotations[quorum.OverrideAnnotation], "overrideBy": m.Annotations[quorum.OverrideByAnnotation],
			"owners": m.OwnerReferences,
		}
	}
	return out
}

// whole says what is amiss with the ring: all three first members vote, on instances that run.
func (c *cluster) whole(ctx context.Context) error {
	etcd, err := c.EtcdClient()
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	list, err := etcd.MemberList(ctx)
	if err != nil {
		return err
	}
	var voters []string
	for _, m := range list.Members {
		if !m.GetIsLearner() {
			voters = append(voters, m.GetName())
		}
	}
	if slices.Sort(voters); !slices.Equal(voters, masters()) {
		return fmt.Errorf("voters are %v", voters)
	}
	for _, name := range masters() {
		if h, ok := c.Host(name); !ok || h.Etcd == nil {
			return fmt.Errorf("instance %s does not run", name)
		}
	}
	return nil
}

// run runs kubectl as that identity and returns what it was told: warnings and errors.
func (c *cluster) run(ctx context.Context, who sandbox.Identity, stdin any, args ...string) (heard []string, err error) {
	command := exec.CommandContext(ctx, c.kubectl, append([]string{"--kubeconfig=" + c.Kubeconfig(who), "--cache-dir=" + filepath.Join(c.scratch, who.File())}, args...)...)
	if stdin != nil {
		text, err := json.Marshal(stdin)
		if err != nil {
			return nil, err
		}
		command.Stdin = bytes.NewReader(text)
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	err = command.Run()
	for line := range strings.Lines(stderr.String()) {
		if text, ok := strings.CutPrefix(line, "Warning: "); ok {
			heard = append(heard, text)
		}
	}
	if err != nil {
		err = fmt.Errorf("kubectl: %w: %s", err, stderr.String())
	}
	return heard, err
}

// outcome is what came of a request: who answered, and by which rule.
type outcome string

const (
	passes  outcome = "allowed, nothing guarded changes"
	invalid outcome = "refused by the API server itself"
	unknown outcome = "refused by the API server itself: there is no such thing"

	upstream   outcome = "denied by machine-api-operator's own webhook"
	unreadable outcome = "denied: Holdfast cannot read it"
)

func denied(rule quorum.Rule) outcome { return outcome("denied: " + string(rule)) }
func warned(rule quorum.Rule) outcome {
	return outcome("allowed or put right, with a Warning: " + string(rule))
}

// outcomeOf reads the rule out of the texts that a person reads.
func outcomeOf(err error, heard []string) outcome {
	rules := regexp.MustCompile(`(?:Refused|Holdfast) \(([a-z-]+)\)`)
	switch {
	case err != nil:
		if m := rules.FindStringSubmatch(err.Error()); m != nil && strings.Contains(err.Error(), "Refused") {
			return denied(quorum.Rule(m[1]))
		}
		if strings.Contains(err.Error(), "Holdfast cannot read this request, so it refuses it") {
			return unreadable
		}
		if strings.Contains(err.Error(), `"validation.machine.machine.openshift.io" denied`) {
			return upstream
		}
		for _, sign := range []string{"NotFound", "not find", "not found", "MethodNotAllowed", "does not allow this method"} {
			if strings.Contains(err.Error(), sign) {
				return unknown
			}
		}
		return invalid
	default:
		for _, line := range heard {
			if m := rules.FindStringSubmatch(line); m != nil {
				return warned(quorum.Rule(m[1]))
			}
		}
		return passes
	}
}
