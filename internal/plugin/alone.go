package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// runbook is where a person is led who has no API server.
const runbook = "https://github.com/holdfast-dev/holdfast/blob/main/docs/incidents.md#etcd-has-no-quorum"

// impatient is how long the API server may take where etcd's half can be shown without it.
const impatient = 3 * time.Second

// noAnswer is the error of a first request to the API server that was not answered. A refusal is an answer.
type noAnswer struct{ error }

// unanswered makes it one, unless the API server answered.
func unanswered(err error) error {
	if errors.As(err, new(apierrors.APIStatus)) && !transient(err) {
		return err
	}
	return noAnswer{err}
}

func (n noAnswer) Unwrap() error { return n.error }

func (n noAnswer) Error() string {
	return oneLine(n.error) + "; if etcd has no quorum: " + runbook
}

// withoutAPI shows what etcd alone tells, where the API server does not answer and the command was told how to reach etcd. The error is
// the one that it was given.
func (o *statusOptions) withoutAPI(ctx context.Context, t terminal, failed error) error {
	if !errors.As(failed, new(noAnswer)) || !o.asksEtcd() {
		return failed
	}
	ring, stop, err := t.dial.etcd(&o.etcd)
	if err != nil {
		return errors.Join(failed, err)
	}
	defer stop()
	fmt.Fprintln(t.out, "The API server does not answer. This is what etcd tells; Machines, hooks and Nodes are not known.")
	fmt.Fprintln(t.out)
	v := &view{}
	v.decide(&quorum.Snapshot{Now: t.now(), Ring: ring.Read(ctx), DesiredWhy: "the API server does not answer", Limits: quorum.DefaultLimits()})
	v.etcdLines(t.out)
	fmt.Fprintln(t.out)
	if v.Ring.Known {
		rows := [][]string{{"MEMBER", "ID", "ROLE", "HEALTH"}}
		for i := range v.Ring.Members {
			rows = append(rows, v.memberCells(&v.Ring.Members[i]))
		}
		if err := printRows(t.out, rows); err != nil {
			return err
		}
		return failed
	}
	c, ok := ring.(interface {
		Contacts(ctx context.Context) []etcd.Contact
		Listed(ctx context.Context) []quorum.Member
	})
	if !ok {
		return failed
	}
	return errors.Join(printContacts(t, c.Contacts(ctx), c.Listed(ctx)), failed)
}

// printContacts prints what each endpoint says of itself, which takes no quorum, and which of the listed members none of them is.
func printContacts(t terminal, all []etcd.Contact, listed []quorum.Member) error {
	rows := [][]string{{"ENDPOINT", "MEMBER", "ROLE", "TERM", "SAYS"}}
	answered, here := 0, map[quorum.MemberID]bool{}
	for i := range all {
		c := &all[i]
		if c.Err != nil {
			said := oneLine(c.Err)
			if c.Silent {
				said = "no answer"
			}
			if listed != nil && !slices.ContainsFunc(listed, func(m quorum.Member) bool { return slices.Contains(m.ClientURLs, c.URL) }) {
				said = "no member is listed at this endpoint; " + said
			}
			rows = append(rows, []string{c.URL, "", "", "", tail(said, 80)})
			continue
		}
		answered++
		here[c.Status.Member] = true
		role, said := "voter", "it knows of no leader"
		switch {
		case c.Status.Learner:
			role = "learner"
		case c.Status.Leader == c.Status.Member:
			role = "leader"
		}
		if c.Status.Leader != 0 {
			said = "its leader is " + c.Status.Leader.Hex()
		}
		rows = append(rows, []string{c.URL, c.Status.Member.Hex(), role, fmt.Sprint(c.Status.Term), said})
	}
	if err := printRows(t.out, rows); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "\n%d of %d endpoints answer.\n", answered, len(all))
	var away []string
	for i := range listed {
		if m := &listed[i]; !here[m.ID] {
			away = append(away, plain(fmt.Sprintf("  %s at %s", m, strings.Join(m.PeerURLs, ", "))))
		}
	}
	switch {
	case listed == nil:
		fmt.Fprint(t.out, "Start the hosts of etcd's members. ")
	case away != nil:
		fmt.Fprint(t.out, "These members do not answer, by the list that one of the others has; start their hosts:\n"+strings.Join(away, "\n")+"\n")
	}
	fmt.Fprintln(t.out, "Delete nothing, and format no disk.")
	return nil
}
