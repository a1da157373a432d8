package agent

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestScrapesDoNotQueueBehindASlowOne(t *testing.T) {
	a := &agent{Options: Options{Log: slog.New(slog.DiscardHandler)}, binaries: &binaries{}, scrapes: newTurns()}
	if !a.scrapes.take(t.Context()) {
		t.Fatal("the first has no turn")
	}
	second := make(chan int, 1)
	scrape := func() int {
		w := httptest.NewRecorder()
		a.metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Code
	}
	go func() { second <- scrape() }()
	for deadline := time.Now().Add(30 * time.Second); len(a.scrapes.waiting) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second does not wait")
		}
	}
	if code := scrape(); code != http.StatusServiceUnavailable {
		t.Errorf("the third: %d", code)
	}
	a.scrapes.done()
	select {
	case code := <-second:
		if code != http.StatusOK {
			t.Errorf("the second: %d", code)
		}
	case <-time.After(5 * time.Second):
		t.Error("the second waits for ever")
	}
	if code := scrape(); code != http.StatusOK {
		t.Errorf("one alone: %d", code)
	}
}

func TestTimesOfFirstFilesAreAHistogram(t *testing.T) {
	var m PublishMetrics
	m.Wrote(2 * time.Millisecond)
	m.Wrote(20 * time.Millisecond)
	m.Wrote(time.Minute)
	var e exposition
	(&agent{Options: Options{Published: func() PublishMetrics { return m }}}).collectPublished(&e)
	lines := strings.Join(e.families["rail_cni_publish_seconds"].lines, "\n")
	for _, want := range []string{`_bucket{le="0.003"} 1`, `_bucket{le="0.01"} 1`, `_bucket{le="0.03"} 2`, `_bucket{le="10"} 2`, `_bucket{le="+Inf"} 3`, `_sum 60.022`, `_count 3`} {
		if !strings.Contains(lines, "rail_cni_publish_seconds"+want+"\n") && !strings.HasSuffix(lines, want) {
			t.Errorf("no %s in\n%s", want, lines)
		}
	}
}

func TestStatusOfARuleIsALabel(t *testing.T) {
	m := DoctorMetrics{Rules: []RuleStatus{{"NIC-CARRIER", "fail"}, {"NIC-MTU", "ok"}}, Last: time.Unix(1_700_000_000, 0), Took: 1500 * time.Millisecond, Panics: 2}
	var e exposition
	(&agent{Options: Options{Doctor: func() DoctorMetrics { return m }}}).collectDoctor(&e)
	var b strings.Builder
	if _, err := e.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`rail_doctor_rule{id="NIC-CARRIER",status="fail"} 1`, `rail_doctor_rule{id="NIC-MTU",status="ok"} 1`, "rail_doctor_last_run_timestamp_seconds 1.7e+09",
		"rail_doctor_run_seconds 1.5", "rail_doctor_panics_total 2",
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}

func TestFullestPoolsHaveMetrics(t *testing.T) {
	read := time.Unix(1_700_000_000, 0)
	m := PoolMetrics{Read: read, Pools: []PoolUse{
		{Pool: "10.0.0.0-24", Used: 127, Addresses: 254},
		{Pool: "10.1.0.0-16", Used: 3, Addresses: 65534, Claimed: 1023, Blocks: 1024},
	}}
	for i := range mostPools - 1 {
		m.Pools = append(m.Pools, PoolUse{Pool: fmt.Sprint("node-", i), Used: 1, Addresses: 1000})
	}
	exposed := func() string {
		t.Helper()
		var e exposition
		(&agent{Options: Options{Pools: func() PoolMetrics { return m }}}).collectPools(&e)
		var b strings.Builder
		if _, err := e.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	text := exposed()
	for _, want := range []string{
		`rail_cni_pool_addresses{pool="10.0.0.0-24"} 254`, `rail_cni_pool_addresses_used{pool="10.0.0.0-24"} 127`,
		`rail_cni_pool_blocks{pool="10.1.0.0-16"} 1024`, `rail_cni_pool_blocks_claimed{pool="10.1.0.0-16"} 1023`,
		"rail_cni_pools 1001", "rail_cni_pools_read_timestamp_seconds 1.7e+09",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%.2000s", want, text)
		}
	}
	if n := strings.Count(text, "\nrail_cni_pool_addresses{"); n != mostPools {
		t.Errorf("%d pools", n)
	}
	if n := strings.Count(text, "\nrail_cni_pool_blocks{"); n != 1 {
		t.Errorf("%d pools with blocks", n)
	}
	m.Read = time.Time{}
	if text := exposed(); text != "" {
		t.Errorf("a process that does not reconcile says:\n%s", text)
	}
}
