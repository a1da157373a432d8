package events

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

func TestLongMessageIsCutBetweenCharacters(t *testing.T) {
	r := New(nil, "node1", nil)
	for _, text := range []string{strings.Repeat("a", maxMessage), strings.Repeat("a", maxMessage+1), strings.Repeat("ü", maxMessage), "a" + strings.Repeat("ü", maxMessage)} {
		message, ok := r.event(component.Notice{Reason: "Test", Message: text}, time.Now())["message"].(string)
		if !ok || len(message) > maxMessage || len(message) < maxMessage-len("…ü") || !utf8.ValidString(message) {
			t.Errorf("of %d bytes it made %d: %q", len(text), len(message), message[max(0, len(message)-10):])
		}
		if cut := strings.HasSuffix(message, "…"); cut != (len(text) > maxMessage) {
			t.Errorf("of %d bytes: cut is %v", len(text), cut)
		}
	}
}

// TestToTellNeverBlocks does not call Run, so nothing is sent, as if the API server could not be
// reached.
func TestToTellNeverBlocks(t *testing.T) {
	r := New(nil, "node1", nil)
	for range 2*cap(r.queue) + 1 {
		r.Notify(component.Notice{Reason: "Test"})
	}
	if len(r.queue) != cap(r.queue) {
		t.Errorf("%d notices wait", len(r.queue))
	}
}

func TestNoticeIsSentAsAnEvent(t *testing.T) {
	sent := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct{ Reason string }
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Error(err)
		}
		sent <- event.Reason
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}], "current-context": "x"}`, server.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := kube.Open(kube.Config{Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	r := New(client, "node1", slog.New(slog.DiscardHandler))
	go r.Run(t.Context())
	for _, reason := range []string{"NotReturned", "Returned", "Test"} {
		r.Notify(component.Notice{Reason: reason})
	}
	for _, want := range []string{"NotReturned", "Returned", "Test"} {
		if got := <-sent; got != want {
			t.Errorf("sent %s, want %s", got, want)
		}
	}
}
