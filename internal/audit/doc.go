// Package audit writes down what admission decided, and what Holdfast did of its own accord and saw (Step): one
// audit.k8s.io/v1 Event for each, in the form of the API server's own audit log, so that what
// reads the one reads the other. The AuditID of a decision is the UID of the AdmissionRequest, which the API server's
// record of the same request carries as annotation request-uid of Holdfast's webhooks.
//
// # What is kept, and when
//
// Each local log is written before Write returns, and so before the API server gets its answer. The
// record is then in the kernel's hands: it survives a kill -9 of Holdfast, as the counts of repetitions do not. It is not synced to the
// disk, because that disk is mostly etcd's, which a sync would slow down at the worst moment: a power
// loss may take the last seconds with it. The remote sink and the API server's own log are for that.
//
// The remote sink takes its records from a bounded queue and is tried again until it takes them. What
// finds the queue full is counted in holdfast_audit_dropped_total and is in the local log all the same.
//
// Nothing here changes a decision, or holds it up for longer than half a second. A local log that fails, or hangs
// for that long, is counted in holdfast_audit_errors_total, logged by the process, reported by Ready,
// and tried again with the next record. Dry runs leave no record.
//
// # Repetitions
//
// A tool that strips the hook at each sync would write the same record for ever. The first one is
// written at once; those that repair the same by the same rule on the same object for the same user
// after that are counted. The count is written as a record, the last of them, after FirstCount and then after longer and
// longer, until the fight rests for RepeatWindow. Everything else, denials and used escape hatches above all, is written each time.
package audit
