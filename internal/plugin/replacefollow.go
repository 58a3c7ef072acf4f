package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// replacing is a replacement under way.
type replacing struct {
	*cluster
	t   terminal
	old *machinev1beta1.Machine
	yes bool // without a question

	line   string    // what was printed last
	unseen time.Time // since when the old Machine is gone and etcd's part is not known
}

// say prints how it goes, where that is new.
func (r *replacing) say(format string, args ...any) {
	line := plain(fmt.Sprintf(format, args...))
	if ageless(line) != ageless(r.line) {
		r.line = line
		fmt.Fprintf(r.t.out, "%s  %s\n", r.t.now().UTC().Format("15:04:05"), line)
	}
}

func (r *replacing) run(ctx context.Context, next *machinev1beta1.Machine) error {
	if err := r.agreed(ctx, fmt.Sprintf("Machine %s will be created, a copy of %s. Once it is Running, Machine %s is deleted, which cannot be taken back.", next.Name, r.old.Name, r.old.Name)); err != nil {
		return err
	}
	by, err := r.create(ctx, next)
	if err != nil {
		return err
	}
	if r.old.DeletionTimestamp == nil {
		if err := r.waitRunning(ctx, by); err != nil {
			return err
		}
	}
	if err := r.remove(ctx); err != nil {
		return err
	}
	return r.waitReplaced(ctx, func() string { return by })
}

// trial asks the server whether the old Machine could be deleted now.
func (r *replacing) trial(ctx context.Context) error {
	if r.old.DeletionTimestamp != nil {
		return nil
	}
	if err := r.Delete(ctx, r.old.DeepCopy(), client.Preconditions{UID: &r.old.UID}, client.DryRunAll); err != nil {
		return fmt.Errorf("Machine %s could not be deleted now, so nothing is begun: %s", r.old.Name, serverMessage(err))
	}
	return nil
}

// agreed asks the server, by a trial, and then the person whether the old Machine may be deleted. what happens is printed first.
func (r *replacing) agreed(ctx context.Context, what string) error {
	asks := !r.yes && r.old.DeletionTimestamp == nil
	if asks {
		fmt.Fprintln(r.t.out, plain(what)+" First a trial of the deletion.")
	}
	if err := r.trial(ctx); err != nil || !asks {
		return err
	}
	return ask(ctx, r.t, r.old.Name, "To go ahead, type the Machine's name: ", "--yes")
}

// create makes the replacement, or finds the one that was made before, and returns its name. Where a Machine that is being deleted
// needs none, that is the Machine that hosts no voter yet, or "".
func (r *replacing) create(ctx context.Context, next *machinev1beta1.Machine) (string, error) {
	var found machinev1beta1.MachineList
	if err := r.List(ctx, &found, client.InNamespace(r.namespace), client.MatchingLabels{replacesLabel: string(r.old.UID)}); err != nil {
		return "", fmt.Errorf("look for the replacement of Machine %s: %w", r.old.Name, err)
	}
	v, err := r.look(ctx)
	if err != nil {
		return "", err
	}
	for i := range found.Items {
		m := &found.Items[i]
		if m.DeletionTimestamp != nil {
			continue
		}
		if v.replacedAnother(r.old.Name, m.Name) {
			r.say("Machine %s was created to replace %s, and votes in place of another Machine by now.", m.Name, r.old.Name)
			continue
		}
		r.say("Machine %s is there already to replace %s; going on with it as it is.", m.Name, r.old.Name)
		return m.Name, nil
	}
	if spare, enough := v.spare(); enough && r.old.DeletionTimestamp != nil {
		r.say("Beside Machine %s there are as many Machines as voters are wanted (%d), so no other is created.", r.old.Name, v.Desired)
		return spare, nil
	}
	if slices.ContainsFunc(found.Items, func(m machinev1beta1.Machine) bool { return m.Name == next.Name }) {
		next.Name = nextName(r.old, strconv.Itoa(len(found.Items))) // that one is taken by a copy that serves another Machine
	}
	if err := r.Create(ctx, next, fieldManager); apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("Machine %s exists and was not made to replace %s; give another --name", next.Name, r.old.Name)
	} else if err != nil {
		return "", fmt.Errorf("create Machine %s: %s", next.Name, serverMessage(err))
	}
	r.say("Machine %s is created.", next.Name)
	return next.Name, nil
}

// spare is whether as many Machines stay as voters are wanted, and the one of them that hosts no voter yet, "" without one. A Machine that
// has failed does not count.
func (v *view) spare() (name string, enough bool) {
	staying := 0
	for i := range v.Machines {
		m := &v.Machines[i]
		if m.Deleting() || m.Mirrored || m.Phase == machinev1beta1.PhaseFailed {
			continue
		}
		staying++
		if v.join.Voter(m) == nil {
			name = m.Name
		}
	}
	return name, v.Desired > 0 && staying >= v.Desired
}

// replacedAnother reports whether the copy of a Machine has replaced another one: the copy votes, and the Machine still waits for a Node. It
// is false where the number of voters that is wanted is not known.
func (v *view) replacedAnother(old, copied string) bool {
	m := v.Machine(copied)
	return v.Desired > 0 && m != nil && v.join.Voter(m) != nil && v.phase(old) == membership.PhaseAwaitNode
}

// waitRunning waits until the replacement is Running, before the old Machine is deleted: that cannot be taken back, and the replacement may
// never run.
func (r *replacing) waitRunning(ctx context.Context, by string) error {
	return r.each(ctx, func() (bool, error) {
		m, err := r.machine(ctx, by)
		if errors.Is(err, errGone) {
			return false, fmt.Errorf("Machine %s was deleted meanwhile; Machine %s is as it was", by, r.old.Name)
		}
		if err != nil {
			return false, err
		}
		phase := ptr.Deref(m.Status.Phase, "waiting for the Machine API")
		switch phase {
		case machinev1beta1.PhaseRunning:
			r.say("Machine %s is Running.", m.Name)
			return true, nil
		case machinev1beta1.PhaseFailed:
			why := strings.Join(strings.Fields(ptr.Deref(m.Status.ErrorMessage, "")), " ")
			return false, fmt.Errorf("Machine %s has failed (%s); Machine %s is as it was. Delete the failed one and try again: kubectl -n %s delete machine.machine.openshift.io %s",
				m.Name, why, r.old.Name, r.namespace, m.Name)
		}
		r.say("Machine %s: %s", m.Name, phase)
		return false, nil
	})
}

// remove deletes the old Machine, if it is still that one.
func (r *replacing) remove(ctx context.Context) error {
	if r.old.DeletionTimestamp != nil {
		return nil
	}
	err := r.Delete(ctx, r.old.DeepCopy(), client.Preconditions{UID: &r.old.UID})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("Machine %s is another one by now; look again", r.old.Name)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Machine %s: %s. Its replacement stays; the same command tries again", r.old.Name, strings.TrimRight(serverMessage(err), "."))
	}
	r.say("Machine %s is deleted, and held until etcd can do without its member.", r.old.Name)
	return nil
}

// waitReplaced follows until the old Machine is gone and what replaces it votes. next names that, "" while it is not known.
func (r *replacing) waitReplaced(ctx context.Context, next func() string) error {
	return r.each(ctx, func() (bool, error) {
		m, err := r.machine(ctx, r.old.Name)
		gone := errors.Is(err, errGone) || err == nil && m.UID != r.old.UID
		if err != nil && !gone {
			return false, err
		}
		v, err := r.look(ctx)
		if err != nil {
			return false, err
		}
		if gone {
			return r.voting(v, next())
		}
		if by := next(); by != "" && !keeps(metav1.GetControllerOf(r.old)) && v.replacedAnother(r.old.Name, by) { // a set creates one more by itself
			return false, fmt.Errorf("Machine %s votes, and Machine %s is still held: it took the place of another voter that has gone or is to go; the same command creates one more", by, r.old.Name)
		}
		if seen := v.Machine(r.old.Name); seen != nil { // else it went in between, as the next look shows
			r.held(v, seen)
		}
		return false, nil
	})
}

// held prints what the old Machine waits for.
func (r *replacing) held(v *view, old *quorum.Machine) {
	switch {
	case old.DeletingUnheld() && len(old.OtherHooks) > 0:
		r.say("Machine %s is let go by Holdfast. Another lifecycle hook holds it: %s.", old.Name, strings.Join(old.OtherHooks, " and "))
	case old.DeletingUnheld():
		r.say("Machine %s is let go: the machine controller drains and terminates it.", old.Name)
	case !v.Ring.Known:
		r.say("Machine %s is held (etcd: %s).", old.Name, v.Ring.Why)
	case old.Latch == quorum.EntryOurs && v.unguarded():
		r.say("Machine %s is held, and stays so while the guard is not in force: kubectl holdfast check", old.Name)
	default:
		if phase := v.phase(old.Name); phase != 0 {
			r.say("Machine %s is held: it waits for %s.", old.Name, phase.WaitsFor(v.Mode))
		}
	}
}

// voting reports whether a Machine's etcd member votes, or, whichever Machine it is, etcd has all the voters that are wanted. The old
// Machine is gone by then.
func (r *replacing) voting(v *view, by string) (bool, error) {
	if !v.Ring.Known {
		if r.unseen.IsZero() {
			r.unseen = r.t.now()
		}
		if r.t.now().Sub(r.unseen) >= time.Minute {
			return false, fmt.Errorf("Machine %s is gone, but whether its replacement votes in etcd is not known here: %s", r.old.Name, cmp.Or(v.source, v.Ring.Why))
		}
		r.say("Machine %s is gone. Whether its replacement votes in etcd is not known (%s).", r.old.Name, v.Ring.Why)
		return false, nil
	}
	r.unseen = time.Time{}
	voters, healthy := v.Ring.Voters()
	etcd := fmt.Sprintf("etcd has %d of %d voters healthy, %d wanted", healthy, voters, v.Desired)
	complete := v.Desired > 0 && v.staying() >= v.Desired
	if by == "" {
		if complete {
			r.say("Machine %s is gone, and no voter is missing: %s.", r.old.Name, etcd)
			return true, nil
		}
		r.say("Machine %s is gone. Nothing has replaced it yet; %s.", r.old.Name, etcd)
		return false, nil
	}
	next := v.Machine(by)
	if next == nil {
		return false, fmt.Errorf("Machine %s is gone, and so is Machine %s that was to replace it; %s. See kubectl holdfast status", r.old.Name, by, etcd)
	}
	does := "has no etcd member yet"
	for _, member := range v.join.Members(next) {
		if !member.Learner && member.Healthy && !next.Deleting() {
			r.say("Machine %s is gone. Machine %s has replaced it, and its etcd member votes: %s.", r.old.Name, by, etcd)
			return true, nil
		}
		does = "hosts etcd " + v.role(member) + " " + member.String() + ", " + v.healthOf(member)
	}
	if next.Deleting() {
		does += ", and is being deleted itself"
	}
	if complete {
		r.say("Machine %s is gone. Machine %s has replaced it. It %s, and none is missing: %s.", r.old.Name, by, does, etcd)
		return true, nil
	}
	r.say("Machine %s is gone. Machine %s does not vote yet: it %s; %s.", r.old.Name, by, does, etcd)
	return false, nil
}

// staying counts the healthy voters whose Machine is not being deleted.
func (v *view) staying() (n int) {
	for i := range v.Ring.Members {
		m := &v.Ring.Members[i]
		if host := v.join.Host(m).Machine(); !m.Learner && m.Healthy && host != nil && !host.Deleting() {
			n++
		}
	}
	return n
}

// each looks every second until it is done. What the API server fails to answer now and then is no
// reason to stop: while etcd's leader moves it answers late.
func (r *replacing) each(ctx context.Context, look func() (done bool, err error)) error {
	failures := 0
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		done, err := look()
		if err == nil {
			failures = 0
			return done, nil
		}
		if failures++; !transient(err) || failures >= 30 {
			return false, err
		}
		r.say("Not seen, trying again: %v", err)
		return false, nil
	})
}

// transient reports whether an error is the API server's or the network's of the moment.
func transient(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return errors.As(err, new(interface{ Timeout() bool })) || errors.Is(err, context.DeadlineExceeded)
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
