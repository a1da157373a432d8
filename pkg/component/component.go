package component

import (
	"context"
	"net/http"
)

// Component is one of the things that the agent runs. Every function may be nil. They are called
// concurrently.
type Component struct {
	Name string // one word, of logs and of the metric rail_cni_panics_total

	// Run works until ctx ends, and returns when all that it began has ended.
	Run func(ctx context.Context)

	// Reporter is the component's, and counts its panics. The agent makes one if it is nil.
	Reporter *Reporter

	// Collect sends the metrics at each scrape.
	Collect func(out Metrics)

	// Healthy returns an error if the component hangs: only a new process helps.
	Healthy func() error
	// Ready returns an error while the node must not be used yet.
	Ready func() error

	// Status returns what the component adds to the agent's status, a JSON object.
	Status func() map[string]any

	// Handlers answer requests at the socket, by their patterns (http.ServeMux).
	Handlers map[string]http.Handler
}
