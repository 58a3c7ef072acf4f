package snapshotfile

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// The marks of a file of this format.
const (
	APIVersion = "holdfast.dev/v1alpha1"
	Kind       = "Snapshot"
)

// File is a Snapshot as it is written down. The tags on its fields are the format.
type File struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Namespace string `json:"namespace,omitzero"` // of the Machines, for the commands in texts
	quorum.Snapshot
}

// Of is the file of a Snapshot whose Machines are in that namespace.
func Of(s *quorum.Snapshot, namespace string) *File {
	return &File{APIVersion: APIVersion, Kind: Kind, Namespace: namespace, Snapshot: *s}
}

// Parse reads YAML or JSON. A field that the format does not have is an error, and an error names the field that is wrong.
// Limits that the file does not have are the default ones.
func Parse(raw []byte) (*File, error) {
	text, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		// The library's lists of what is wrong have several lines, and an error is a sentence.
		return nil, fmt.Errorf("not a snapshot file: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	f := &File{Snapshot: quorum.Snapshot{Limits: quorum.DefaultLimits()}}
	if err := json.Unmarshal(text, (*plain)(f), forms()); err != nil {
		return nil, named(err)
	}
	if f.APIVersion != APIVersion || f.Kind != Kind {
		return nil, fmt.Errorf("not a snapshot file: apiVersion and kind are %q and %q, not %s and %s", f.APIVersion, f.Kind, APIVersion, Kind)
	}
	return f, f.complete()
}

// MarshalJSON writes the file.
func (f *File) MarshalJSON() ([]byte, error) { return json.Marshal((*plain)(f), forms()) }

// plain is a File without methods.
type plain File

// named is an error with its place as people write it, such as machines[0].name.
func named(err error) error {
	var wrong *json.SemanticError
	if !errors.As(err, &wrong) {
		return fmt.Errorf("not a snapshot file: %w", err)
	}
	place := regexp.MustCompile(`/(\d+)`).ReplaceAllString(string(wrong.JSONPointer), "[$1]")
	place = strings.TrimPrefix(strings.ReplaceAll(place, "/", "."), ".")
	switch {
	case errors.Is(wrong.Err, json.ErrUnknownName):
		return fmt.Errorf("%s: a snapshot file has no field %q there", place, wrong.JSONPointer.LastToken())
	case wrong.Err != nil:
		return fmt.Errorf("%s: %w", place, wrong.Err)
	}
	return fmt.Errorf("%s: a %s cannot be here", place, wrong.JSONKind)
}

// complete fills in what a file may leave out, and says what else it lacks.
func (f *File) complete() error {
	var wrong error
	wants := func(ok bool, why, place string, args ...any) {
		if !ok && wrong == nil {
			wrong = fmt.Errorf("%s: %s", fmt.Sprintf(place, args...), why)
		}
	}
	const missing = "it is missing"
	wants(f.Mode != 0, missing+": full or guard", "mode")
	f.QuorumGuard.Managed = f.QuorumGuard.Managed && f.Mode == quorum.ModeFull
	wants(!f.Now.IsZero(), missing+": when the snapshot was taken", "now")
	wants(f.Desired >= 0, "it is negative", "desired")
	for i := range f.Ring.Members {
		wants(f.Ring.Members[i].ID != 0, missing, "etcd.members[%d].id", i)
	}
	machines := func(list []quorum.Machine, place string) {
		for i := range list {
			m := &list[i]
			wants(m.Name != "", missing, "%s[%d].name", place, i)
			m.Hook, m.Latch = max(m.Hook, quorum.EntryAbsent), max(m.Latch, quorum.EntryAbsent)
			// As from the API: an annotation that does not parse joins nothing, and is kept as it stands.
			m.Evidence, _ = machineapi.ParseEvidence(m.EvidenceRaw)
		}
	}
	machines(f.Machines, "machines")
	machines(f.Claimants, "claimants")
	for i := range f.Machines {
		once := !slices.ContainsFunc(f.Machines[:i], func(m quorum.Machine) bool { return m.Name == f.Machines[i].Name })
		wants(once, fmt.Sprintf("%q is there twice", f.Machines[i].Name), "machines[%d].name", i)
	}
	for i := range f.Nodes {
		wants(f.Nodes[i].Name != "", missing, "nodes[%d].name", i)
	}
	for i := range f.Ledger.Entries {
		wants(f.Ledger.Entries[i].UID != "", missing, "releaseLedger.releases[%d].uid", i)
	}
	for i := range f.QuorumGuard.Pods {
		wants(f.QuorumGuard.Pods[i].Owner != 0, missing, "quorumGuard.pods[%d].owner", i)
	}
	return wrong
}

// forms are those types' forms in files that are not their own.
func forms() json.Options {
	return json.JoinOptions(
		json.RejectUnknownMembers(true),
		json.Deterministic(true),
		json.WithMarshalers(json.JoinMarshalers(
			text(func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }),
			text(time.Duration.String),
			text(machineapi.FormatEvidence),
			json.MarshalToFunc(func(e *jsontext.Encoder, values quorum.InstanceValues) error {
				named := map[string]string{}
				for i, value := range values {
					if value != "" {
						named[quorum.InstanceAnnotations[i].Key] = value
					}
				}
				return json.MarshalEncode(e, named)
			}),
		)),
		json.WithUnmarshalers(json.JoinUnmarshalers(
			parsed("", func(text string) (string, error) { return text, nil }),
			parsed("", quorum.ParseMemberID),
			parsed("", machineapi.ParseEvidence),
			parsed("a time such as 2026-03-01T12:00:00Z", func(text string) (time.Time, error) { return time.Parse(time.RFC3339Nano, text) }),
			parsed("a duration such as 5m or 200ms", func(text string) (time.Duration, error) {
				d, err := time.ParseDuration(text)
				if d < 0 {
					err = errors.New("negative")
				}
				return d, err
			}),
			parsed("an IP address", netip.ParseAddr),
			json.UnmarshalFromFunc(func(d *jsontext.Decoder, values *quorum.InstanceValues) error {
				var named map[string]string
				if err := json.UnmarshalDecode(d, &named); err != nil {
					return err
				}
				for key, value := range named {
					i := slices.IndexFunc(quorum.InstanceAnnotations[:], func(a struct{ Key, Prefix string }) bool { return a.Key == key })
					if i < 0 {
						return fmt.Errorf("%q is no annotation that names an instance", key)
					}
					values[i] = value
				}
				return nil
			}),
			json.UnmarshalFromFunc(func(d *jsontext.Decoder, g *quorum.Guard) error {
				type plain quorum.Guard
				g.Managed = true // it would not be there
				return json.UnmarshalDecode(d, (*plain)(g))
			}),
		)),
	)
}

// text has a type written as a text.
func text[T any](format func(T) string) *json.Marshalers {
	return json.MarshalToFunc(func(e *jsontext.Encoder, value T) error { return e.WriteToken(jsontext.String(format(value))) })
}

// parsed has a type read from a text, or from what YAML took for a number. want says what the text should be; "" where parse's error does.
func parsed[T any](want string, parse func(string) (T, error)) *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(d *jsontext.Decoder, into *T) error {
		if kind := d.PeekKind(); kind != '"' && kind != '0' {
			return errors.ErrUnsupported // null, or what cannot be here
		}
		token, err := d.ReadToken()
		if err != nil {
			return err
		}
		text := token.String()
		if *into, err = parse(text); err != nil && want != "" {
			return fmt.Errorf("%q is not %s", text, want)
		}
		return err
	})
}
