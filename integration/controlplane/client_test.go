package controlplane

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestClientTriesAgainWhenTheServerAsksForIt(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "storage is (re)initializing", http.StatusTooManyRequests)
		}
	}))
	defer server.Close()
	c := &Client{server: server.URL, http: *server.Client()}
	want(t, http.StatusOK)(c.Get(t.Context(), "/"))
	if asked != 2 {
		t.Errorf("the server was asked %d times, want 2", asked)
	}
}

func TestClientReturnsARefusalThatIsFinal(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	c := &Client{server: server.URL, http: *server.Client()}
	want(t, http.StatusTooManyRequests)(c.Get(t.Context(), "/"))
	if asked != 1 {
		t.Errorf("the server was asked %d times, want 1", asked)
	}
}
