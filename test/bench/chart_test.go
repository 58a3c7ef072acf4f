package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestChart: the picture is XML, has a bar for each request of one client with each variant, and the longest is the slowest's.
func TestChart(t *testing.T) {
	r := &report{Latencies: []latency{
		{Request: "delete <a>", With: "none", Clients: 1, P50: 2},
		{Request: "delete <a>", With: "guard", Clients: 1, P50: 8},
		{Request: "delete <a>", With: "guard", Clients: 64, P50: 99},
		{Request: "update", With: "guard", Clients: 1, P50: 3},
	}}
	text := r.chart()
	bars := 0
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "title" {
			bars++
		}
	}
	if bars != 3 || strings.Contains(text, "99.0") || !strings.Contains(text, `width="590.0"`) {
		t.Errorf("%d bars:\n%s", bars, text)
	}
}
