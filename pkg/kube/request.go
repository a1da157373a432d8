package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	firstWait = 50 * time.Millisecond
	maxWait   = 2 * time.Second
	patience  = time.Second // how long a person waits before Config.Waiting is called

	// maxAnswer bounds the memory of an answer. etcd accepts objects of 1.5
	// MiB, and lists are read in pages.
	maxAnswer = 64 << 20
)

// anyType is the accepted type for an answer that is not an object, such as a log.
const anyType = "*/*"

// errTooMuch is wrapped by the error of an answer that is larger than maxAnswer.
var errTooMuch = fmt.Errorf("the answer is larger than %d MiB: perhaps it is from a proxy, and not from an API server", maxAnswer>>20)

// request is one request, which may be sent several times.
type request struct {
	verb     string // RBAC's verb
	method   string
	resource Resource
	name     string // "" for list, watch and create
	sub      string // subresource, "" mostly
	creates  string // the name in a create's body
	query    url.Values

	accept, contentType string
	body                []byte
}

// named reports whether the verb is about one object that its path names.
func (q request) named() bool { return q.verb != "list" && q.verb != "watch" && q.verb != "create" }

// object names the request's object: "ippools kube-system/10.0.0.0-24".
func (q request) object() string {
	parts := []string{}
	for _, part := range []string{q.resource.Namespace, q.name + q.creates} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return q.resource.Plural
	}
	return q.resource.Plural + " " + strings.Join(parts, "/")
}

// send sends q until it is answered, and returns the body of a 2xx answer.
func (c *Client) send(ctx context.Context, q request) ([]byte, error) {
	if c.config.Waiting != nil && !c.answered.Load() {
		reported := make(chan struct{})
		tell := time.AfterFunc(patience, func() {
			defer close(reported)
			if !c.answered.Load() {
				c.waiting.Do(func() { c.config.Waiting(c.Server()) })
			}
		})
		defer func() {
			if !tell.Stop() {
				<-reported // the caller may write where Waiting writes
			}
		}()
	}
	var body []byte
	err := c.retry(ctx, q, func() *Error {
		// One try is bounded, including the last byte of its answer.
		ctx, cancel := context.WithTimeoutCause(ctx, c.config.Timeout, c.silence())
		defer cancel()
		answer, failed := c.try(ctx, q)
		if failed != nil {
			return failed
		}
		defer answer.Body.Close()
		var err error
		if body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1)); err != nil {
			return c.failure(q, fmt.Errorf("the answer broke off: %w", because(ctx, err)))
		}
		if len(body) > maxAnswer {
			return c.notAPIServer(q, answer, errTooMuch)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return body, nil
}

// try sends q once. It returns an answer only if its status is 2xx. The body of the answer
// is unread.
func (c *Client) try(ctx context.Context, q request) (*http.Response, *Error) {
	sent, err := c.build(ctx, q)
	if err != nil {
		failed := c.failure(q, err)
		failed.final = true
		return nil, failed
	}
	used := &connection{ctx: ctx}
	sent = sent.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { used.conn.Store(&got.Conn) },
	}))
	answer, err := c.http.Load().Do(sent)
	if err != nil {
		used.failed()
		var outer *url.Error // contains the URL, which is already in our error
		if errors.As(err, &outer) {
			err = outer.Err
		}
		return nil, c.failure(q, because(ctx, err))
	}
	used.ReadCloser, answer.Body = answer.Body, used
	c.answered.Store(true)
	c.noteDate(answer.Header)
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		defer answer.Body.Close()
		return nil, c.refusal(ctx, q, answer)
	}
	if kind := answer.Header.Get("Content-Type"); q.accept != anyType && !strings.HasPrefix(kind, plainJSON) {
		_ = answer.Body.Close()
		return nil, c.notAPIServer(q, answer, fmt.Errorf("the answer is %q and not JSON, so it is not from an API server (perhaps from a proxy)", kind))
	}
	return answer, nil
}

// connection is the connection of one try, and the body of its answer. If the try reaches
// its time limit, even in the middle of the body, the connection is closed. Otherwise the
// transport would go on to use a connection whose far end is silently gone, until HTTP/2
// pings it after 30 s. To close the idle connections is not enough, because a connection is
// not idle while it waits for the end of an interrupted request.
type connection struct {
	io.ReadCloser
	ctx  context.Context // of the try
	conn atomic.Pointer[net.Conn]
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if err != nil {
		c.failed()
	}
	return n, err
}

func (c *connection) failed() {
	if conn := c.conn.Load(); conn != nil && errors.As(context.Cause(c.ctx), new(*timeoutError)) {
		_ = (*conn).Close()
	}
}

// notAPIServer returns the error of an answer that does not come from an API server.
func (c *Client) notAPIServer(q request, answer *http.Response, err error) *Error {
	failed := c.failure(q, err)
	failed.Status, failed.notAPIServer = answer.StatusCode, true
	return failed
}

func (c *Client) build(ctx context.Context, q request) (*http.Request, error) {
	if q.named() && q.name == "" {
		return nil, errors.New("no name of an object")
	}
	path, err := q.resource.path(q.name)
	if err != nil {
		return nil, err
	}
	to := c.base.JoinPath(path, q.sub)
	to.RawQuery = q.query.Encode()
	sent, err := http.NewRequestWithContext(ctx, q.method, to.String(), bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	sent.Header.Set("Accept", q.accept)
	sent.Header.Set("User-Agent", c.config.UserAgent)
	if q.contentType != "" {
		sent.Header.Set("Content-Type", q.contentType)
	}
	return sent, nil
}

// retry calls try until it succeeds, until it returns an error that a retry does not
// change, or until ctx ends. Then it returns the last error. If ctx interrupted the last
// try, it returns the error of the try before, which is more useful.
func (c *Client) retry(ctx context.Context, q request, try func() *Error) error {
	began := time.Now()
	var last *Error
	renewed := false
	for n, limit := 1, firstWait; ; n, limit = n+1, min(2*limit, maxWait) {
		failed := try()
		if failed == nil {
			return nil
		}
		if failed.Status == 0 {
			c.hangUp() // so that the next try does not use a connection that may be broken
		}
		if ctx.Err() != nil && failed.Status == 0 && last != nil {
			failed = last
		}
		failed.Tries, failed.Tried = n, time.Since(began)
		last = failed

		pause := max(limit/2+rand.N(limit/2), failed.retryAfter)
		switch {
		case (failed.Status == http.StatusUnauthorized || failed.mistrust()) && !renewed:
			c.renew()
			renewed, pause = true, 0
		case !failed.transient():
			return c.explain(q, failed)
		}
		if c.config.SilentTries > 0 && n >= c.config.SilentTries && !c.answered.Load() {
			return c.explain(q, failed)
		}
		if c.config.RetryFor > 0 && time.Since(began)+pause > c.config.RetryFor {
			return c.explain(q, failed)
		}
		// The pause would end after the deadline.
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < pause {
			return c.explain(q, failed)
		}
		if wait.For(ctx, pause) != nil {
			return c.explain(q, failed)
		}
	}
}

// silence returns the cause with which a try ends that reaches the client's own time limit.
func (c *Client) silence() error {
	return &timeoutError{after: c.config.Timeout}
}

type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("no answer within %s", e.after) }
func (e *timeoutError) Unwrap() error { return context.DeadlineExceeded }

// because returns the cause of ctx's end if ctx has ended, and err otherwise.
func because(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); cause != context.DeadlineExceeded { //nolint:errorlint // the bare one, without any cause
		return cause
	}
	return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
}

// serverTime is a time of the server's clock, and when this process received it.
type serverTime struct{ date, received time.Time }

func (c *Client) noteDate(h http.Header) {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		c.serverTime.Store(&serverTime{date: date, received: time.Now()})
	}
}

// ServerTime returns the earliest time that the server's clock can show now, or false if no
// answer had a Date. It uses the Date of the server's last answer, which is in whole
// seconds (RFC 9110, section 6.6.1). The answer also took time to arrive. So the server's clock may
// show a later time: by one second, and by the time of the arrival.
func (c *Client) ServerTime() (time.Time, bool) {
	last := c.serverTime.Load()
	if last == nil {
		return time.Time{}, false
	}
	return last.date.Add(time.Since(last.received)), true
}

// retryAfter returns the delay in the Retry-After header. It knows only the form with
// seconds, because an API server uses no other form.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds), 3600) * time.Second
}
