package events

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rail-cni/rail-cni/pkg/agent"
)

func TestLongMessageIsCutBetweenCharacters(t *testing.T) {
	r := New(nil, "node1", nil)
	for _, text := range []string{strings.Repeat("a", longest), strings.Repeat("a", longest+1), strings.Repeat("ü", longest), "a" + strings.Repeat("ü", longest)} {
		message, ok := r.event(agent.Notice{Reason: "Test", Message: text}, time.Now())["message"].(string)
		if !ok || len(message) > longest || len(message) < longest-len("…ü") || !utf8.ValidString(message) {
			t.Errorf("of %d bytes it made %d: %q", len(text), len(message), message[max(0, len(message)-10):])
		}
		if cut := strings.HasSuffix(message, "…"); cut != (len(text) > longest) {
			t.Errorf("of %d bytes: cut is %v", len(text), cut)
		}
	}
}

// Run does not run, as if the API server were away.
func TestToTellNeverBlocks(t *testing.T) {
	r := New(nil, "node1", nil)
	for range 2*cap(r.queue) + 1 {
		r.Tell(agent.Notice{Reason: "Test"})
	}
	if len(r.queue) != cap(r.queue) {
		t.Errorf("%d notices wait", len(r.queue))
	}
}
