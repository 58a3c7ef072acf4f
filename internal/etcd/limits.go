package etcd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// limit is how many learners the member takes that answers at one of its client URLs, 0 if it does not tell. etcd has no call for that, but
// tells its command line.
func (c *Client) limit(ctx context.Context, urls []string) int {
	c.mu.Lock()
	roots := c.roots
	c.mu.Unlock()
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, GetClientCertificate: c.clientCertificate},
		DisableKeepAlives: true,
	}}
	for _, u := range urls {
		at, err := target(u)
		if err != nil {
			continue
		}
		args, err := commandLine(ctx, client, at)
		if err == nil {
			return maxLearners(args)
		}
		c.cfg.Logger.V(1).Info("a member does not tell its command line", "url", at, "reason", err.Error())
	}
	return 0
}

// commandLine is that of the etcd that answers at a client URL.
func commandLine(ctx context.Context, client *http.Client, at string) ([]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/debug/vars", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", at, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask %s: %s", at, response.Status)
	}
	var vars struct {
		CommandLine []string `json:"cmdline"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<20)).Decode(&vars); err != nil {
		return nil, fmt.Errorf("ask %s: %w", at, err)
	}
	return vars.CommandLine, nil
}

// maxLearners is what a command line of etcd says of --max-learners (--experimental-max-learners before 3.6), 0 for nothing. The last
// flag counts, as for etcd. Where there is a configuration file etcd ignores every flag.
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
