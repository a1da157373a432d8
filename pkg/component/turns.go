package component

import (
	"net/http"
	"strconv"
	"time"
)

// OneAtATime returns a handler that calls h for only one request at a time. A second request waits.
// A third request is refused with the text busy, and its sender is told to try again after retry.
// So requests do not pile up behind a slow driver.
func OneAtATime(h http.Handler, busy string, retry time.Duration) http.Handler {
	running, waiting := make(chan struct{}, 1), make(chan struct{}, 2)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case waiting <- struct{}{}: // one place for each request that runs or waits
			defer func() { <-waiting }()
		default:
			w.Header().Set("Retry-After", strconv.Itoa(int(retry.Seconds())))
			http.Error(w, busy, http.StatusServiceUnavailable)
			return
		}
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}
