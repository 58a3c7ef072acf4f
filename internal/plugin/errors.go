package plugin

import (
	"strings"
)

// saidBy is what the server said, without what its admission chain puts before.
func saidBy(err error) string {
	text := err.Error()
	if _, rest, ok := strings.Cut(text, "denied the request: "); ok {
		text = rest
	}
	return text
}
