package component

import (
	"context"
	"net/http"
)

// Component is a part of the agent that the agent runs. Every function may be nil. The functions
// are called concurrently.
type Component struct {
	Name string // one word, used in logs and in the metric rail_cni_panics_total

	// Run does the work until ctx ends. It returns when everything that it has started has ended.
	Run func(ctx context.Context)

	// Reporter reports the component's problems and counts its panics. If it is nil, the agent
	// makes a reporter.
	Reporter *Reporter

	// Collect sends the metrics at each scrape.
	Collect func(out Metrics)

	// Healthy returns an error if the component hangs, so that only a new process helps.
	Healthy func() error
	// Ready returns an error as long as the node must not be used.
	Ready func() error

	// Status returns the fields that the component adds to the agent's status, which is a JSON
	// object.
	Status func() map[string]any

	// Handlers answer requests at the socket. The keys are patterns of http.ServeMux.
	Handlers map[string]http.Handler
}
