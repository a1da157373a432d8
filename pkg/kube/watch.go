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
	// Type is ADDED, MODIFIED, DELETED, or BOOKMARK. The object of a BOOKMARK has only a
	// resource version, at which a later Watch may begin.
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"` // the object's JSON; for DELETED the object's last state
}

// Watch calls each with every change of the objects that o selects. It ends in one of these
// cases:
//
//   - The server ends the watch. Watch returns nil, and the caller may begin again at the
//     last resource version.
//   - The connection breaks. [IsUnavailable] is true for the error, and the caller may
//     begin again in the same way.
//   - The server has forgotten o.ResourceVersion. The error wraps [ErrExpired], and the
//     caller must list again.
//   - ctx ends. The error wraps that of ctx.
//   - each returns an error. Watch returns it unchanged.
//
// The start of the watch is retried like any request, and bounded by Config.Timeout. The
// rest has no time limit.
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
		// The answer's body lives only as long as its context. So the time limit of
		// the start is a timer that is stopped, and not a deadline of the context.
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
