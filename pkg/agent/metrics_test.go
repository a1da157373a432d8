package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
)

func get(a *Agent, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	a.answers(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// TestScrapesDoNotQueueBehindASlowOne makes three scrapes. One runs, one waits, and the third must
// be refused.
func TestScrapesDoNotQueueBehindASlowOne(t *testing.T) {
	began, release := make(chan struct{}, 2), make(chan struct{})
	a := New(Options{Log: slog.New(slog.DiscardHandler)})
	a.Add(component.Component{Name: "slow", Collect: func(component.Metrics) {
		began <- struct{}{}
		<-release
	}})
	answers := make(chan *httptest.ResponseRecorder, 3)
	scrape := func() { answers <- get(a, "/metrics") }
	go scrape()
	<-began
	go scrape()
	go scrape()
	if w := <-answers; w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "10" {
		t.Errorf("the third: %d", w.Code)
	}
	close(release)
	for range 2 {
		if w := <-answers; w.Code != http.StatusOK {
			t.Errorf("a scrape that ran or waited: %d", w.Code)
		}
	}
}

// TestOneBadMetricCostsNoOther: a driver may have counters with any name, and a component may have
// a defect. All other metrics must still be served.
func TestOneBadMetricCostsNoOther(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	a := New(Options{Log: log, Version: "v7", NodeName: "node-a", Keeps: true})
	a.Add(
		component.Component{Name: "bad", Collect: func(out component.Metrics) {
			out.Gauge("not a name", "", 1)
			out.Gauge("twice", "", 1, "pod", "a")
			out.Gauge("twice", "", 2, "pod", "a")
			out.Counter("b_total", "Of b.", 12, "pod", "a\"b\\c\nd\xff", "none", "")
			h := component.NewHistogram(0.1, 1)
			for _, d := range []time.Duration{-time.Second, 100 * time.Millisecond, 2 * time.Second} {
				h.Observe(d)
			}
			out.Histogram("c_seconds", "Of c.", h, "plugin", "macvlan")
		}},
		component.Component{Name: "broken", Reporter: component.NewReporter("broken", log, nil), Collect: func(component.Metrics) { panic("a defect") }},
	)
	w := get(a, "/metrics")
	if w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	for _, want := range []string{
		`b_total{pod="a\"b\\c\nd` + "\uFFFD" + `"} 12`, `rail_cni_agent_info{node_name="node-a",version="v7"} 1`,
		`rail_cni_panics_total{component="broken"} 1`, `c_seconds_bucket{plugin="macvlan",le="0.1"} 2`, `c_seconds_bucket{plugin="macvlan",le="1"} 2`,
		`c_seconds_bucket{plugin="macvlan",le="+Inf"} 3`, `c_seconds_sum{plugin="macvlan"} 2.1`, `c_seconds_count{plugin="macvlan"} 3`,
		"# TYPE process_resident_memory_bytes gauge", "# TYPE process_cpu_seconds_total counter", "# TYPE go_goroutines gauge",
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, w.Body)
		}
	}
}

// TestComponentsAreTheAgent: the agent is ready only if all components are ready and none hangs.
// Each component adds its part of the status, and may answer requests at the socket.
func TestComponentsAreTheAgent(t *testing.T) {
	a := New(Options{Log: slog.New(slog.DiscardHandler), NodeName: "node-a"})
	notReady, hangs := errors.New("not checked yet"), error(nil)
	a.Add(
		component.Component{Name: "one", Ready: func() error { return notReady }, Status: func() map[string]any { return map[string]any{"one": 1} }},
		component.Component{Name: "two", Healthy: func() error { return hangs }, Status: func() map[string]any { return map[string]any{"two": 2} }},
		component.Component{Name: "three"},
	)
	if w := get(a, "/readyz"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "not checked yet") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	notReady = nil
	if w := get(a, "/readyz"); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	hangs = errors.New("it hangs")
	for _, path := range []string{"/readyz", "/healthz"} {
		if w := get(a, path); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "it hangs") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	text, err := a.Status()
	var s map[string]any
	err = errors.Join(err, json.Unmarshal(text, &s))
	if memory, _ := s["memoryBytes"].(float64); err != nil || s["one"] != 1.0 || s["two"] != 2.0 || s["node"] != "node-a" || memory < 1<<20 {
		t.Errorf("%v: %s", err, text)
	}
}

// TestComponentThatPanicsRunsAgain: a component that panics must run again, a component that
// returns must not, and all other components continue.
func TestComponentThatPanicsRunsAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	a := New(Options{Log: log})
	runs, returned := 0, 0
	a.Add(
		component.Component{Name: "broken", Reporter: component.NewReporter("broken", log, nil), Run: func(context.Context) {
			if runs++; runs < 3 {
				panic("a defect")
			}
			cancel()
		}},
		component.Component{Name: "done", Run: func(context.Context) { returned++ }},
	)
	if err := a.Run(ctx); err != nil || runs != 3 || returned != 1 {
		t.Errorf("%v: %d runs, %d returned", err, runs, returned)
	}
}

// TestHealthIsServedWithoutMetrics: the address for the kubelet's probes must not serve metrics,
// because not everybody may read them.
func TestHealthIsServedWithoutMetrics(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	a := New(Options{Log: slog.New(slog.DiscardHandler), Health: address})
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--health") {
		t.Errorf("the port is taken: %v", err)
	}
	_ = l.Close()
	notReady := errors.New("the Lease cannot be read")
	a.Add(component.Component{Name: "reconciler", Ready: func() error { return notReady }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	ask := func(path string) (int, string) {
		t.Helper()
		for range 100 {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil { // it does not listen yet
				time.Sleep(20 * time.Millisecond)
				continue
			}
			defer answer.Body.Close()
			text, _ := io.ReadAll(answer.Body) // a short text
			return answer.StatusCode, string(text)
		}
		t.Fatal("it does not listen")
		return 0, ""
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/metrics": http.StatusNotFound} {
		if code, text := ask(path); code != want || path == "/readyz" && !strings.Contains(text, notReady.Error()) {
			t.Errorf("%s: %d, %s", path, code, text)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
