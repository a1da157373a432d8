package kube

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// LogOptions bound the log of a container.
type LogOptions struct {
	Since    time.Duration // how old its lines may be; 0 is no bound
	Lines    int           // from the end; 0 is no bound
	Bytes    int           // from the beginning of those; 0 is no bound
	Previous bool          // that of the container's run before its last restart
}

// Log returns the log of a container, with the time of each line. It needs the right to get
// pods/log.
func (c *Client) Log(ctx context.Context, namespace, pod, container string, o LogOptions) ([]byte, error) {
	query := url.Values{"container": {container}, "timestamps": {"true"}}
	for key, n := range map[string]int{"sinceSeconds": int(o.Since / time.Second), "tailLines": o.Lines, "limitBytes": o.Bytes} {
		if n > 0 {
			query.Set(key, strconv.Itoa(n))
		}
	}
	if o.Previous {
		query.Set("previous", "true")
	}
	return c.send(ctx, request{
		verb: "get", method: http.MethodGet, resource: Resource{Version: "v1", Plural: "pods", Namespace: namespace}, name: pod, sub: "log",
		query: query, accept: anyType,
	})
}
