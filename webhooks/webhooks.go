package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"golang.org/x/sync/errgroup"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// The paths that the handlers are served at; the registrations name them.
const (
	MutatePath          = "/mutate-machine"
	ValidatePath        = "/validate-machine"
	HomePath            = "/validate-home"
	KeepersPath         = "/validate-keepers"
	ControlPlaneSetPath = "/validate-control-plane-set" // full mode
)

// Observer reads what a decision needs beyond its request, live. All return within a second or so,
// because the API server waits for the answer.
type Observer interface {
	// Snapshot is the whole cluster. Where only etcd did not answer, it is a Snapshot whose Ring is
	// not Known and says why; an error means that the rest could not be read either. Both hold. It is
	// given to several decisions at once, and is never changed.
	Snapshot(ctx context.Context) (*quorum.Snapshot, error)
	// Machines are the guarded Machines of the Machine namespace.
	Machines(ctx context.Context) ([]quorum.Machine, error)
	// Hosts are the Machine's own Node (of one without a Node the control plane's), if it is compared with the others, who has its instance, and if it
	// gets a controller, the MachineSets.
	Hosts(ctx context.Context, m *quorum.Machine, compares, adopts bool) (*quorum.Snapshot, error)
	// Selected is what a selector meets in the Machine namespace.
	Selected(ctx context.Context, selector labels.Selector) (*quorum.Selection, error)
}

// Recorder gets decisions; see the package's comment for which handler reports what.
type Recorder interface {
	// Decided is called before the answer is given. A dry run may leave nothing but its answer, so Decided
	// must write nothing then.
	Decided(ctx context.Context, r Record)
}

// Record is a decision to record.
type Record struct {
	Admission *admissionv1.AdmissionRequest // as the API server sent it
	Request   admission.Request
	Decision  admission.Decision // those findings that are this call's to record, at least one
	Snapshot  *quorum.Snapshot   // what it was decided on, nil where nothing was read
	Received  time.Time
}

// DryRun reports whether the request is one.
func (r *Record) DryRun() bool { return dryRun(r.Admission) }

// FieldManager is who the request is made as to server-side apply; "" for DELETE.
func (r *Record) FieldManager() string {
	var options struct {
		FieldManager string `json:"fieldManager"`
	}
	if err := json.Unmarshal(r.Admission.Options.Raw, &options); err != nil {
		return "" // there are no options, or they are not ours to judge
	}
	return options.FieldManager
}

func dryRun(req *admissionv1.AdmissionRequest) bool { return req.DryRun != nil && *req.DryRun }

// Handlers is what both handlers need. All exported fields are required, but for Enforcement.
type Handlers struct {
	Identities       admission.Identities
	Enforcement      admission.Enforcement
	MachineNamespace string // requests for other namespaces pass without a look
	Observer         Observer
	Recorder         Recorder
	Metrics          *Metrics
	// Claim adds an entry to the release ledger, and fails if that is not as it was read any more.
	Claim func(ctx context.Context, l *quorum.Ledger, entry quorum.Release) error

	sharedReads sharedReads[*quorum.Snapshot]
	lists       sharedReads[[]quorum.Machine]
}

// Mutating is the handler for MutatePath.
func (g *Handlers) Mutating() ctrladmission.Handler {
	return g.handler(mutating, func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		return g.answer(ctx, &req, g.mutate)
	})
}

// Validating is the handler for ValidatePath.
func (g *Handlers) Validating() ctrladmission.Handler {
	return g.handler(validating, func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		return g.answer(ctx, &req, g.validate)
	})
}

// review is one AdmissionReview on its way to an answer.
type review struct {
	*ctrladmission.Request
	request   admission.Request
	old, next *machineapi.Object // as in request: nil where the operation has none
	snapshot  *quorum.Snapshot
	decision  admission.Decision
	received  time.Time
}

// stale reports whether the API server will refuse the request with a conflict, because its object is older than
// the stored one. Mutating webhooks are called before it compares the two, so what the writer did not know of
// looks like a strip, or like a hook that is put back. Such a request is decided, and leaves no trace. The requester writes this field, so
// it is compared as the API server does it, by number: "007" is no conflict with "7".
func (r *review) stale() bool {
	if r.old == nil || r.next == nil {
		return false
	}
	next, err := strconv.ParseUint(r.next.ResourceVersion, 10, 64)
	old, errOld := strconv.ParseUint(r.old.ResourceVersion, 10, 64)
	return err == nil && errOld == nil && next != 0 && next != old
}

// answer decides a request and has the handler put the decision into words.
func (g *Handlers) answer(ctx context.Context, req *ctrladmission.Request, respond func(context.Context, *review) ctrladmission.Response) ctrladmission.Response {
	if req.Kind.Group != machinev1beta1.GroupName || req.Kind.Kind != "Machine" {
		return refused(fmt.Errorf("Holdfast answers for Machines of %s only, and this AdmissionReview is about %s", machinev1beta1.GroupName, about(req)))
	}
	if req.Namespace != g.MachineNamespace || req.SubResource != "" {
		return ctrladmission.Allowed("")
	}
	received := time.Now()
	r, err := decode(req)
	if err != nil {
		return refused(err)
	}
	r.received, r.request.At, r.request.Unenforced = received, received, g.Enforcement != admission.Enforce
	r.snapshot = g.gather(ctx, r)
	r.decision = g.Identities.Admit(&r.request, r.snapshot)
	response := respond(ctx, r)
	response.AuditAnnotations = annotations(req, &r.decision)
	return response
}

// about names what a review is about, which may be nothing.
func about(req *ctrladmission.Request) string {
	if req.Kind.Kind == "" {
		return "nothing"
	}
	return strings.TrimSuffix(req.Kind.Kind+"."+req.Kind.Group, ".")
}

// refused is the answer to what cannot be read: the API server shows the error's text to the user.
func refused(err error) ctrladmission.Response {
	return ctrladmission.Errored(http.StatusBadRequest, err)
}

// decode reads a request. DELETE has no new object and, as a part of deletecollection, no name
// either, so the objects say what it is about.
func decode(req *ctrladmission.Request) (*review, error) {
	r := review{Request: req, request: admission.Request{Operation: operationOf(req), User: user(req), Namespace: req.Namespace}}
	var err error
	switch req.Operation {
	case admissionv1.Create:
		r.next, r.request.New, err = machine("new", req.Object.Raw)
	case admissionv1.Update:
		r.next, r.request.New, err = machine("new", req.Object.Raw)
		if err == nil {
			r.old, r.request.Old, err = machine("stored", req.OldObject.Raw)
		}
	case admissionv1.Delete:
		r.old, r.request.Old, err = machine("stored", req.OldObject.Raw)
	default:
		err = fmt.Errorf("Holdfast does not know the operation %q", req.Operation)
	}
	if err == nil && r.request.Operation == admission.OperationUpdate && r.request.Drops() {
		r.request.ByWebhook = machineapi.TakenByWebhook(r.next, r.request.Old.Hook != quorum.EntryOurs)
	}
	return &r, err
}

func machine(which string, raw []byte) (*machineapi.Object, *quorum.Machine, error) {
	if len(raw) == 0 {
		return nil, nil, fmt.Errorf("the %s Machine is missing from the AdmissionReview", which)
	}
	m, err := machineapi.Decode(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("the %s Machine cannot be read: %w", which, err)
	}
	seen := machineapi.Machine(&m.Machine)
	return m, &seen, nil
}

// gather reads what the decision needs. It returns nil if it cannot: then the decision is to hold the Machine.
func (g *Handlers) gather(ctx context.Context, r *review) *quorum.Snapshot {
	var (
		s   *quorum.Snapshot
		err error
	)
	switch g.Identities.Needs(&r.request) {
	case admission.NeedRing:
		if r.mayShareRead() {
			s, err = g.sharedReads.share(ctx, g.Observer.Snapshot)
		} else {
			s, err = g.Observer.Snapshot(ctx)
		}
		if err == nil && r.request.Operation == admission.OperationUpdate && r.request.Adopts() {
			s, err = g.withSets(ctx, &r.request, s)
		}
	case admission.NeedHosts:
		s, err = g.hosts(ctx, r)
	case admission.NeedNothing:
	}
	if err != nil {
		logger(ctx, r.Request).Error(err, "deciding without a look at the cluster")
		if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			r.request.Unread = err.Error()
		}
		return nil
	}
	return s
}

// hosts reads what the rule claim wants to know. Requests share the list of the guarded Machines, because a tool may delete many workers
// at once, and a large set names the instances of as many.
func (g *Handlers) hosts(ctx context.Context, r *review) (*quorum.Snapshot, error) {
	var machines []quorum.Machine
	var hosts *quorum.Snapshot
	group, within := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		machines, err = g.lists.share(within, g.Observer.Machines)
		return err
	})
	group.Go(func() (err error) {
		hosts, err = g.Observer.Hosts(within, r.request.Machine(), g.Identities.Compares(&r.request), r.request.Adopts())
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	with := *hosts
	with.Machines = machines
	return &with, nil
}

// withSets is a Snapshot with the sets of Machines.
func (g *Handlers) withSets(ctx context.Context, r *admission.Request, s *quorum.Snapshot) (*quorum.Snapshot, error) {
	hosts, err := g.Observer.Hosts(ctx, r.New, false, true)
	if err != nil {
		return nil, err
	}
	with := *s
	with.MachineSets, with.ControlPlaneMachineSets, with.MachineSetsWhy = hosts.MachineSets, hosts.ControlPlaneMachineSets, hosts.MachineSetsWhy
	return &with, nil
}

// mutate denies, or patches and warns of the repairs.
func (g *Handlers) mutate(ctx context.Context, r *review) ctrladmission.Response {
	if denial := r.decision.Denial(); denial != nil {
		if g.Enforcement != admission.Enforce {
			return ctrladmission.Allowed("") // the request goes on to validate, which reports it
		}
		return g.deny(ctx, r, denial)
	}
	warnings := g.report(ctx, r, func(v admission.Verdict) bool { return v == admission.VerdictRepaired })
	return ctrladmission.Patched("", machineapi.KeepOwnership(r.old, r.next, r.due())...).WithWarnings(warnings...)
}

// validate denies, also what ought to have been repaired by now, and warns of all but the repairs, which mutate has reported.
func (g *Handlers) validate(ctx context.Context, r *review) ctrladmission.Response {
	if !r.stale() {
		g.claim(ctx, r.Request, &r.decision, r.snapshot)
	}
	if denial := r.decision.Denial(); denial != nil {
		return g.deny(ctx, r, denial)
	}
	if answer := g.selfCall(r); answer != nil {
		return *answer
	}
	if g.Enforcement == admission.Enforce && r.next != nil && len(r.due()) > 0 {
		return g.undone(ctx, r)
	}
	warnings := g.report(ctx, r, func(v admission.Verdict) bool { return v != admission.VerdictRepaired })
	return ctrladmission.Allowed("").WithWarnings(warnings...)
}

// claim writes down what a decision claims, the last thing before it is allowed. If it cannot, the decision denies.
func (g *Handlers) claim(ctx context.Context, req *ctrladmission.Request, d *admission.Decision, s *quorum.Snapshot) {
	if d.Claims.Until.IsZero() || d.Denial() != nil || dryRun(&req.AdmissionRequest) || g.Enforcement != admission.Enforce {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	if err := g.Claim(ctx, &s.Ledger, d.Claims); err != nil {
		d.NotClaimed(err.Error())
	}
}

// claimTimeout is for one write to the API server, after a look.
const claimTimeout = time.Second / 2

// deny answers with one rule's denial. The findings of other rules are dropped, because nothing that they say happens.
func (g *Handlers) deny(ctx context.Context, r *review, denial *admission.Finding) ctrladmission.Response {
	r.decision = admission.Decision{Findings: []admission.Finding{*denial}}
	g.report(ctx, r, func(admission.Verdict) bool { return true })
	return denied(denial)
}

// denied is the refusal as the user reads it.
func denied(f *admission.Finding) ctrladmission.Response {
	return ctrladmission.Denied(strings.Join(f.Lines, "\n") + "\nThe rule: " + f.Rule.Page())
}

// undone denies an object that lacks a repair: either another webhook took it out again, or the
// mutating webhook was not called, as its failure policy allows.
func (g *Handlers) undone(ctx context.Context, r *review) ctrladmission.Response {
	rule := quorum.RuleKeepHook
	for _, f := range r.decision.Findings {
		if f.Verdict == admission.VerdictRepaired {
			rule = f.Rule
		}
	}
	name := r.next.Name
	text := []string{
		fmt.Sprintf("Refused (%s): Machine %s would be stored without Holdfast's repair: %s.", rule, name, r.decision.Repairs.Describe()),
		"Either another mutating webhook undid it, or Holdfast's own was not called in time.",
		"Try again; if it stays so, see which webhooks change Machines: kubectl get mutatingwebhookconfigurations",
	}
	return g.deny(ctx, r, &admission.Finding{Rule: rule, Verdict: admission.VerdictDenied, Lines: text})
}

// due are the repairs that the object still lacks.
func (r *review) due() []jsonpatch.Operation {
	if r.decision.Repairs == (admission.Repairs{}) {
		return nil
	}
	return machineapi.Repair(r.old, r.next, r.decision.Repairs, quorum.Stamp(r.UserInfo.Username, r.request.At))
}

// report records the findings that are this handler's to report, and returns their Warnings.
func (g *Handlers) report(ctx context.Context, r *review, mine func(admission.Verdict) bool) (warnings []string) {
	d := r.decision
	d.Findings = slices.DeleteFunc(slices.Clone(d.Findings), func(f admission.Finding) bool { return !mine(f.Verdict) })
	if len(d.Findings) == 0 || r.stale() {
		return nil
	}
	g.decided(ctx, Record{Admission: &r.AdmissionRequest, Request: r.request, Decision: d, Snapshot: r.snapshot, Received: r.received})
	return lines(d.Warnings())
}

// conclude records a decision about another object than a Machine, and is the answer to the request.
func (g *Handlers) conclude(ctx context.Context, req *ctrladmission.Request, d admission.Decision, s *quorum.Snapshot, received time.Time) ctrladmission.Response {
	if len(d.Findings) == 0 {
		return ctrladmission.Allowed("")
	}
	g.decided(ctx, Record{
		Admission: &req.AdmissionRequest, Decision: d, Snapshot: s, Received: received,
		Request: admission.Request{Operation: operationOf(req), User: user(req), Namespace: req.Namespace},
	})
	response := ctrladmission.Allowed("").WithWarnings(lines(d.Warnings())...)
	if denial := d.Denial(); denial != nil {
		response = denied(denial)
	}
	response.AuditAnnotations = annotations(req, &d)
	return response
}

// operationOf is the zero value for an operation that no rule knows.
func operationOf(req *ctrladmission.Request) admission.Operation {
	return map[admissionv1.Operation]admission.Operation{
		admissionv1.Create: admission.OperationCreate, admissionv1.Update: admission.OperationUpdate, admissionv1.Delete: admission.OperationDelete,
	}[req.Operation]
}

func user(req *ctrladmission.Request) admission.User {
	return admission.User{Name: req.UserInfo.Username, Groups: req.UserInfo.Groups}
}

// decided counts and records a decision. If the API server has hung up, the failure policy has decided: then it is recorded as
// abandoned, and not counted.
func (g *Handlers) decided(ctx context.Context, r Record) {
	if ctx.Err() == nil {
		g.Metrics.decided(&r)
	}
	g.Recorder.Decided(ctx, r)
}

// annotations are those of the API server's audit record: which rules had something to say, and the
// request's UID, by which Holdfast's own record can be found.
func annotations(req *ctrladmission.Request, d *admission.Decision) map[string]string {
	if len(d.Findings) == 0 {
		return nil
	}
	var rules, verdicts []string
	for _, f := range d.Findings {
		rules = append(rules, string(f.Rule))
		verdicts = append(verdicts, f.Verdict.String())
	}
	return map[string]string{
		"rule":        strings.Join(rules, ","),
		"verdict":     strings.Join(verdicts, ","),
		"request-uid": string(req.UID),
	}
}

// lines makes texts fit for Warnings: the API server drops one that holds a control character, which
// a user or Machine's annotation can bring in.
func lines(texts []string) []string {
	var out []string
	for _, text := range texts {
		text = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, strings.ToValidUTF8(text, "?"))
		if text != "" {
			out = append(out, text)
		}
	}
	return out
}
