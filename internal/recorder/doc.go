// Package recorder makes admission's decisions audit records, Events on their Machines and lines in the log.
package recorder
