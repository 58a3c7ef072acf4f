// Package metrics reads pages of metrics in Prometheus' text format.
package metrics

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Page is the samples of a page, by name and labels as they are written.
type Page map[string]float64

// Read reads the page at a URL.
func Read(ctx context.Context, c *http.Client, url string) (Page, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	if err != nil {
		return nil, err
	}
	page := Page{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		if page[line[:i]], err = strconv.ParseFloat(line[i+1:], 64); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", url, line, err)
		}
	}
	return page, nil
}

// Sum adds the samples of a metric whose labels hold all of the texts.
func (p Page) Sum(name string, labels ...string) (total float64) {
next:
	for key, value := range p {
		is, rest, _ := strings.Cut(key, "{")
		if is != name {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue next
			}
		}
		total += value
	}
	return total
}

// Has says whether the page has a sample of a metric.
func (p Page) Has(name string) bool {
	for key := range p {
		if is, _, _ := strings.Cut(key, "{"); is == name {
			return true
		}
	}
	return false
}
