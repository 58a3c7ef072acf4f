// Package monitoring runs the alerts and the dashboard of deploy/monitoring: the alerts by promtool on
// series that are made up, and all of it by a Prometheus that scrapes Holdfast on a sandbox.
package monitoring
