package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// instance is what the sandbox's cloud tells of a host.
type instance struct {
	// Name is the Machine's that it was made for, and its Node's.
	Name string `json:"name"`
	// ID is never used twice.
	ID string `json:"id"`
	// Type is the instance type, m5.large say.
	Type string `json:"type"`
	// Address is an IP address; empty while there is none yet.
	Address string `json:"address"`
	// State is Pending, Running, Stopped or Terminating.
	State string `json:"state"`
	// ProviderID is the Machine's and the Node's spec.providerID.
	ProviderID string `json:"providerID"`
	Zone       string `json:"zone"`
}

// cloud is a client of the sandbox's cloud API.
type cloud struct{ http *http.Client }

func newCloud(socket string) *cloud {
	dialer := net.Dialer{}
	return &cloud{http: &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
		},
	}}
}

// cloudError is an answer of the cloud that is neither success nor not found.
type cloudError struct {
	Status  int // HTTP
	Message string
}

func (e *cloudError) Error() string {
	return fmt.Sprintf("the cloud answers %d: %s", e.Status, e.Message)
}

// list returns all instances.
func (c *cloud) list(ctx context.Context) ([]instance, error) {
	var all []instance
	_, err := c.do(ctx, http.MethodGet, "", nil, &all)
	return all, err
}

// get returns the instance of that name, nil if there is none.
func (c *cloud) get(ctx context.Context, name string) (*instance, error) {
	var one instance
	if found, err := c.do(ctx, http.MethodGet, name, nil, &one); err != nil || !found {
		return nil, err
	}
	return &one, nil
}

// create makes the instance of that name, or returns the one that is there. zone is "" for any.
func (c *cloud) create(ctx context.Context, name, instanceType, zone, role string) (*instance, error) {
	var one instance
	wish := map[string]string{"type": instanceType, "zone": zone, "role": role}
	found, err := c.do(ctx, http.MethodPut, name, wish, &one)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("creating instance %s: %w", name, &cloudError{http.StatusNotFound, "not found"})
	}
	return &one, nil
}

// terminate begins the end of the instance of that name. It is there until get
// no longer finds it.
func (c *cloud) terminate(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, name, nil, nil)
	return err
}

// power turns the instance of that name on or off.
func (c *cloud) power(ctx context.Context, name string, on bool) error {
	_, err := c.do(ctx, http.MethodPost, name+"/power", map[string]bool{"on": on}, nil)
	return err
}

// do sends one request and decodes the answer. found is false on a 404.
func (c *cloud) do(ctx context.Context, method, name string, body, answer any) (found bool, err error) {
	path := "/instances"
	if name != "" {
		for part := range strings.SplitSeq(name, "/") {
			path += "/" + url.PathEscape(part)
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %w", method, path, err)
		}
	}()
	var sent io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return false, err
		}
		sent = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://cloud"+path, sent)
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return false, err
	}
	defer func() { _ = response.Body.Close() }() // read to its end by then
	raw, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return false, err
	case response.StatusCode == http.StatusNotFound:
		return false, nil
	case response.StatusCode >= http.StatusMultipleChoices:
		return false, &cloudError{response.StatusCode, strings.TrimSpace(string(raw))}
	case answer == nil:
		return true, nil
	}
	return true, json.Unmarshal(raw, answer)
}
