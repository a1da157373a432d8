package keeper

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
)

// metrics are the values of the metrics of the doctor's rules.
type metrics struct {
	Rules []ruleStatus // the rules that were judged
	Last  time.Time    // the end of the last run, zero before the first
	Took  time.Duration
}

// ruleStatus is the status of a rule.
type ruleStatus struct{ ID, Status string }

// Component returns the keeper as a component of the agent. If judging is false, the component
// serves the node's facts but does not judge them.
func (k *Keeper) Component(judging bool) component.Component {
	c := component.Component{Name: "doctor", Handlers: map[string]http.Handler{
		"GET /facts": component.OneAtATime(http.HandlerFunc(k.serveFacts), "another request for facts is waiting", 5*time.Second),
	}}
	if judging {
		c.Reporter, c.Run, c.Collect = k.reporter, k.Run, k.collect
	}
	return c
}

// read returns the present values of the metrics.
func (k *Keeper) read() metrics {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.metrics
	m.Rules = slices.Clone(m.Rules)
	return m
}

// collect sends the metrics of the doctor's rules.
func (k *Keeper) collect(out component.Metrics) {
	m := k.read()
	for _, r := range m.Rules {
		out.Gauge("rail_doctor_rule", "Status of a rule of the doctor, always 1.", 1, "id", r.ID, "status", r.Status)
	}
	if !m.Last.IsZero() {
		out.Gauge("rail_doctor_last_run_timestamp_seconds", "End of the doctor's last run.", float64(m.Last.UnixMilli())/1000)
		out.Gauge("rail_doctor_run_seconds", "Duration of the doctor's last run.", m.Took.Seconds())
	}
}

// serveFacts answers with the facts of the node.
func (k *Keeper) serveFacts(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), local.FactsTime)
	defer cancel()
	text, err := k.Facts(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the client may be gone
}
