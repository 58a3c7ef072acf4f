package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/utils/ptr"
)

// Entry is a record of ours as it stands in a log, of a decision or of a Step. What is in it was sent by users: it may hold
// anything.
type Entry struct{ auditv1.Event }

// Step is the reason of a Step, "" for a decision.
func (e *Entry) Step() string { return e.Annotations[StepAnnotation] }

// Rules are the rules of its findings, [""] of a Step.
func (e *Entry) Rules() []string { return strings.Split(e.Annotations[RuleAnnotation], ",") }

// Verdicts are the verdicts of its findings, in the order of Rules.
func (e *Entry) Verdicts() []string { return strings.Split(e.Annotations[VerdictAnnotation], ",") }

// Name is the object's: the Machine's, in nearly all records.
func (e *Entry) Name() string { return ptr.Deref(e.ObjectRef, auditv1.ObjectReference{}).Name }

// Count is how many decisions the record stands for.
func (e *Entry) Count() int {
	n, err := strconv.ParseInt(e.Annotations[RepeatedAnnotation], 10, 32)
	if err != nil || n < 1 {
		return 1
	}
	return int(n)
}

// Abandoned says that the API server gave up on the decision: the webhook's failure policy decided instead.
func (e *Entry) Abandoned() bool { return e.Annotations[AbandonedAnnotation] == "true" }

// Last is when the decision was asked for, the last one of those that the record stands for.
func (e *Entry) Last() time.Time { return e.RequestReceivedTimestamp.Time }

// First is when the first of them was asked for.
func (e *Entry) First() time.Time {
	if t, err := time.Parse(time.RFC3339Nano, e.Annotations[RepeatedSinceAnnotation]); err == nil && t.Before(e.Last()) {
		return t
	}
	return e.Last()
}

// Said is what Holdfast answered, by line.
func (e *Entry) Said() []string {
	if e.ResponseStatus == nil {
		return nil
	}
	return strings.Split(e.ResponseStatus.Message, "\n")
}

// Evidence is what Holdfast saw of the cluster, nil if it had no look or it cannot be read.
func (e *Entry) Evidence() *Evidence {
	var out Evidence
	if json.Unmarshal([]byte(e.Annotations[EvidenceAnnotation]), &out) != nil {
		return nil
	}
	return &out
}

// Tally is what became of the lines of a log.
type Tally struct {
	Ours    int // Holdfast's records
	Foreign int // other audit events
	Bad     int // neither
}

// maxLine bounds a line. The API server's events, which may stand in the same log, hold whole objects.
const maxLine = 16 << 20

// Read hands every record of ours in a log to each, in the log's order, and every line that is no
// audit event to bad. Empty lines are nothing. A log may be compressed with gzip, which its first
// bytes say, and its lines may bear the prefix of kubectl logs --prefix. An error is one of reading; what was read before it
// has been handed over.
func Read(in io.Reader, each func(Entry), bad func(line int, err error)) (Tally, error) {
	var tally Tally
	r := bufio.NewReader(in)
	if magic, err := r.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			return tally, fmt.Errorf("decompress: %w", err)
		}
		r = bufio.NewReader(z)
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		switch e, err := parse(line); {
		case err != nil:
			tally.Bad++
			bad(n, err)
		case e.Annotations[RuleAnnotation] == "" && e.Step() == "":
			tally.Foreign++
		default:
			tally.Ours++
			each(*e)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return tally, fmt.Errorf("a line is longer than %d MiB", maxLine>>20)
	}
	return tally, lines.Err()
}

func parse(line []byte) (*Entry, error) {
	if line[0] == '[' { // kubectl logs --prefix puts [pod/holdfast-1/manager] in front
		_, line, _ = bytes.Cut(line, []byte("] "))
	}
	var e Entry
	if err := json.Unmarshal(line, &e.Event); err != nil {
		return nil, fmt.Errorf("it is no audit event: %w", err)
	}
	if e.Kind != "Event" || e.GroupVersionKind().Group != auditv1.GroupName {
		return nil, fmt.Errorf("it is no audit event but %q of %q", e.Kind, e.APIVersion)
	}
	return &e, nil
}

// key is the same for two records of one decision. The API server asks again where an answer got lost,
// maybe another replica; logs may be copied. A record without an ID is like no other: its key is "".
func (e *Entry) key() string {
	if e.AuditID == "" {
		return ""
	}
	return strings.Join([]string{string(e.AuditID), e.User.Username, e.Annotations[RuleAnnotation], e.Annotations[VerdictAnnotation], e.Annotations[RepeatedAnnotation]}, " ")
}

// Merge orders the entries of several logs by time and leaves out those that are there already. Of two
// records of one decision the one that somebody waited for stays.
func Merge(entries []Entry) []Entry {
	byTime := func(a, b Entry) int { return a.Last().Compare(b.Last()) }
	slices.SortStableFunc(entries, func(a, b Entry) int {
		return cmp.Or(strings.Compare(a.Annotations[AbandonedAnnotation], b.Annotations[AbandonedAnnotation]), byTime(a, b))
	})
	seen := map[string]bool{}
	entries = slices.DeleteFunc(entries, func(e Entry) bool {
		key := e.key()
		twice := seen[key]
		seen[key] = key != ""
		return twice
	})
	slices.SortStableFunc(entries, byTime)
	return entries
}
