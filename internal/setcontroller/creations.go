package setcontroller

import (
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// How long the set waits between two creations of which the first came to nothing: twice as long each time.
const (
	firstPause = 10 * time.Second
	mostPause  = 5 * time.Minute
)

// creations is what becomes of the Machines that the set creates. A Machine that the platform refuses fails at once, and a MachineHealthCheck
// deletes it at once: without a pause the set would create hundreds of them in a minute. The zero value knows of none. What is
// remembered is lost with the election, and then a Machine may be created one pause too early.
type creations struct {
	generation int64 // of the set that the Machines were created from
	last       string
	at         time.Time // when it was created
	judged     bool      // whether it came up is known, and counted
	failures   int       // in a row
	why        string    // what is known of the last one
}

// created notes that a Machine was created.
func (c *creations) created(name string, at time.Time) {
	c.last, c.at, c.judged, c.why = name, at, false, ""
}

// recall counts the Machines that came to nothing, and sets in the set's facts until when there is a pause. Any change of the set's spec ends it.
func (c *creations) recall(s *quorum.Snapshot, set *machineset.Set, generation int64) {
	if generation != c.generation {
		*c = creations{generation: generation}
	}
	if m := s.Machine(c.last); c.last != "" && !c.judged {
		if m != nil && set.Places[m.UID].Error != "" {
			c.why = set.Places[m.UID].Error
		}
		switch {
		case m == nil || m.Deleting() || m.Phase == "Failed":
			c.judged = true
			c.failures++
		case m.NodeName != "":
			c.judged = true
			c.failures = 0
		}
	}
	if c.failures == 0 {
		return
	}
	if s.Now.Before(c.at) { // the clock was put back
		c.at = s.Now
	}
	set.NotBefore = c.at.Add(min(mostPause, firstPause<<min(c.failures-1, 10)))
	set.CreationFailure = fmt.Sprintf("Machine %s was created from the template as it is, and was deleted or failed before it had a Node", c.last)
	if c.why != "" {
		set.CreationFailure += ": " + c.why
	}
	if c.failures > 1 {
		set.CreationFailure += fmt.Sprintf(" (%d in a row)", c.failures)
	}
	set.CreationFailure += "; correct the template, or what the platform lacks"
}
