package docs

import (
	"maps"
	"testing"
)

// TestDocumentation holds the pages against the code.
func TestDocumentation(t *testing.T) {
	k, v, all := newTools(t), newVocabulary(t), pages(t)
	v.flags = k.all(t.Context(), "holdfast")
	maps.Copy(v.flags, k.all(t.Context(), "kubectl-holdfast"))
	t.Run("finds", func(t *testing.T) { finds(t, k, v) })
	t.Run("names", func(t *testing.T) {
		for _, p := range all {
			say(t, v.wrong(p))
		}
	})
	t.Run("complete", func(t *testing.T) {
		say(t, v.missing(t, k.ask(t.Context(), "holdfast", "run"), k.ask(t.Context(), "kubectl-holdfast")))
	})
	t.Run("commands", func(t *testing.T) {
		for _, p := range all {
			t.Run(p.path, func(t *testing.T) {
				t.Parallel()
				k.run(t, p)
			})
		}
	})
	t.Run("recorded", k.recorded)
}
