package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// limit is how many learners the member takes that answers at one of its client URLs, 0 if it does not say. etcd has no call for that, but
// shows its command line.
func (c *Client) limit(ctx context.Context, urls []string) int {
	for _, u := range urls {
		at, err := target(u)
		if err != nil {
			continue
		}
		vars, err := c.vars(ctx, at)
		if err == nil {
			return maxLearners(vars.CommandLine)
		}
		c.cfg.Logger.V(1).Info("a member does not show its command line", "url", at, "reason", err.Error())
	}
	return 0
}

// vars is what an etcd says of itself beside its API.
type vars struct {
	CommandLine []string `json:"cmdline"`
	Raft        struct {
		Commit   uint64 `json:"commit"`
		Progress map[string]struct {
			Match uint64 `json:"match"`
			State string `json:"state"`
		} `json:"progress"` // by hex member ID; the leader alone has it
	} `json:"raft.status"`
}

// vars asks the etcd that answers at a client URL.
func (c *Client) vars(ctx context.Context, at string) (out vars, err error) {
	c.mu.Lock()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls(), DisableKeepAlives: true}}
	c.mu.Unlock()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/debug/vars", http.NoBody)
	if err != nil {
		return out, fmt.Errorf("ask %s: %w", at, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return out, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return out, fmt.Errorf("ask %s: %s", at, response.Status)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<20)).Decode(&out); err != nil {
		return out, fmt.Errorf("ask %s: %w", at, err)
	}
	return out, nil
}

// account writes into the ring which members raft counts, and how much of the log they have, by what the leader, of a version, says of itself.
// One that is sent a snapshot gets on, though that is not seen until it has it all.
func (v *vars) account(ring *quorum.Ring, version string) {
	for i := range ring.Members {
		m := &ring.Members[i]
		p, known := v.Raft.Progress[strconv.FormatUint(uint64(m.ID), 16)]
		if !known {
			continue
		}
		m.InRaft, m.Match, m.Receiving = !quorum.RaftFollowsList(version), p.Match, p.State == "StateSnapshot"
		if p.Match < v.Raft.Commit && !m.Receiving {
			m.Behind = v.Raft.Commit - p.Match
		}
	}
}

// maxLearners is what a command line of etcd says of --max-learners (--experimental-max-learners, too, in 3.6; 3.5 takes one in any
// case), 0 for nothing. The last flag counts, as for etcd. Where there is a configuration file etcd ignores every flag.
func maxLearners(args []string) (n int) {
	for i, arg := range args {
		name, value, given := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if strings.HasPrefix(arg, "-") && name == "config-file" {
			return 0
		}
		if !strings.HasPrefix(arg, "-") || name != "max-learners" && name != "experimental-max-learners" {
			continue
		}
		if !given && i+1 < len(args) {
			value = args[i+1]
		}
		var err error
		if n, err = strconv.Atoi(value); err != nil || n < 0 {
			return 0
		}
	}
	return n
}
