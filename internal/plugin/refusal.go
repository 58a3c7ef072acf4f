package plugin

import "strings"

// serverMessage is the text of a refusal as the webhook wrote it, without what the API server puts before it. Other errors stay whole.
func serverMessage(err error) string {
	text := err.Error()
	if _, rest, ok := strings.Cut(text, "denied the request: "); ok {
		return rest
	}
	return text
}
