package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Event is one line of a watch.
type Event struct {
	// Type is ADDED, MODIFIED, DELETED, or BOOKMARK: the object of a bookmark
	// has only a resource version, from which a later Watch may begin.
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"` // its JSON; for DELETED its last state
}

// Watch calls each with every change of the objects that o selects, until the
// server ends it (nil; begin again from the last resource version), the
// connection breaks ([IsUnavailable]; the same), the server has forgotten
// o.ResourceVersion (an error that wraps [ErrExpired]; list again), or ctx ends
// (its error is wrapped). An error of each ends the watch, and is returned
// unchanged. The start is retried like any request, and bounded by
// Config.Timeout; the rest has no limit.
func (c *Client) Watch(ctx context.Context, r Resource, o ListOptions, each func(Event) error) error {
	query := o.query()
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	if o.Timeout > 0 {
		query.Set("timeoutSeconds", strconv.Itoa(max(1, int(o.Timeout/time.Second))))
	}
	q := request{verb: "watch", method: http.MethodGet, resource: r, query: query, accept: plainJSON}
	if o.MetadataOnly {
		q.accept = metadataOnly
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var answer *http.Response
	if err := c.retry(ctx, q, func() *Error {
		// The answer's body lives as long as its context: so the time limit of
		// the start is a timer that is stopped, not a deadline.
		trying, end := context.WithCancelCause(ctx)
		timer := time.AfterFunc(c.config.Timeout, func() { end(c.silence()) })
		got, failed := c.try(trying, q)
		if failed == nil && !timer.Stop() {
			_ = got.Body.Close()
			failed = c.failure(q, c.silence())
		}
		if failed != nil {
			end(nil)
			return failed
		}
		answer = got
		return nil
	}); err != nil {
		return err
	}
	defer answer.Body.Close()

	body := &io.LimitedReader{R: answer.Body}
	events := json.NewDecoder(body)
	for {
		var event Event
		body.N = maxAnswer // for one event, and for the buffer
		if err := events.Decode(&event); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return c.explain(q, c.failure(q, fmt.Errorf("the watch broke off: %w", because(ctx, err))))
		}
		if event.Type == "ERROR" {
			failed := c.failure(q, nil)
			failed.set(event.Object)
			return c.explain(q, failed)
		}
		if err := each(event); err != nil {
			return err
		}
	}
}
