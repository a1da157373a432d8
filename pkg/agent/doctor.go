package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// DoctorMetrics are the values of the metrics of the doctor's rules (package doctor/keeper).
type DoctorMetrics struct {
	Rules  []RuleStatus // of the rules that were judged
	Last   time.Time    // the end of the last run, zero before the first
	Took   time.Duration
	Panics uint64
}

// RuleStatus is the status of a rule.
type RuleStatus struct{ ID, Status string }

// collectDoctor adds the metrics of the doctor's rules.
func (a *agent) collectDoctor(e *exposition) {
	if a.Doctor == nil {
		return
	}
	m := a.Doctor()
	for _, r := range m.Rules {
		e.add("rail_doctor_rule", gauge, "Status of a rule of the doctor, always 1.", 1, labels{"id", r.ID, "status", r.Status})
	}
	if !m.Last.IsZero() {
		e.add("rail_doctor_last_run_timestamp_seconds", gauge, "End of the doctor's last run.", float64(m.Last.UnixMilli())/1000, nil)
		e.add("rail_doctor_run_seconds", gauge, "Duration of the doctor's last run.", m.Took.Seconds(), nil)
	}
	e.add("rail_doctor_panics_total", counter, "Panics of the doctor in the agent.", float64(m.Panics), nil)
}

// FactsTime bounds the reading of the node's facts for a client, which must wait longer to get
// those that were read if some sources hang.
const FactsTime = 6 * time.Second

// facts answers with the facts of the node, one request at a time.
func (a *agent) facts(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), FactsTime)
	defer cancel()
	if !a.readings.take(ctx) {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "another request for facts is waiting", http.StatusServiceUnavailable)
		return
	}
	defer a.readings.done()
	text, err := a.Facts(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the client may be gone
}

// CopyFacts asks the agent at the socket for the facts of the node, a document of package doctor,
// and writes them to out.
func CopyFacts(ctx context.Context, socket string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, FactsTime+time.Second)
	defer cancel()
	answer, err := Get(ctx, socket, "/facts")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
		return errors.Join(err, fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text))))
	}
	_, err = io.Copy(out, answer.Body)
	return err
}
