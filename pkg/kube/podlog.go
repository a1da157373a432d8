package kube

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// LogOptions bound what [Client.Log] returns.
type LogOptions struct {
	Since    time.Duration // how old the lines may be; 0 means no bound
	Lines    int           // number of lines, from the end of the log; 0 means no bound
	Bytes    int           // number of bytes, from the beginning of these lines; 0 means no bound
	Previous bool          // the log of the container's run before its last restart
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
