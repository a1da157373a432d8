package kube_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

const pool = `{"metadata":{"name":"x","resourceVersion":"7"}}`

// Failures that a real server does not produce on demand, and then an answer.
func TestWhatPassesIsRetried(t *testing.T) {
	const timeout = 400 * time.Millisecond
	for _, c := range []struct {
		name    string
		fault   func(w http.ResponseWriter, r *http.Request)
		atLeast time.Duration
	}{
		{"503", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "starting")
		}, 25 * time.Millisecond},
		{"500 of etcd", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusInternalServerError, "InternalError", "etcdserver: leader changed")
		}, 0},
		{"504", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusGatewayTimeout, "Timeout", "request did not complete")
		}, 0},
		{"502 of a proxy", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
		}, 0},
		{"429, which says when", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests, "TooManyRequests", "too many")
		}, time.Second},
		{"429, which does not", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusTooManyRequests, "TooManyRequests", "too many")
		}, 25 * time.Millisecond},
		{"no answer", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, timeout},
		{"an answer too slow", func(w http.ResponseWriter, r *http.Request) {
			answer(w, http.StatusOK, pool[:10])
			flush(w)
			<-r.Context().Done()
		}, timeout},
		{"cut in the middle of the answer", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, pool[:10])
			flush(w)
			panic(http.ErrAbortHandler)
		}, 0},
		{"cut before the answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := newFaulty(t, timeout, func(n int64, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					c.fault(w, r)
					return
				}
				answer(w, http.StatusOK, pool)
			})
			began := time.Now()
			got, err := server.Get(within(t, 40*time.Second), pools, "x")
			if err != nil || string(got) != pool {
				t.Fatalf("%s, %v", got, err)
			}
			if n := server.requests.Load(); n != 2 {
				t.Errorf("%d requests", n)
			}
			if took := time.Since(began); took < c.atLeast || took > c.atLeast+20*time.Second {
				t.Errorf("it took %s, must take %s", took, c.atLeast)
			}
		})
	}
}

func TestWhatDoesNotPassIsNotRetried(t *testing.T) {
	checks := map[string]func(error) bool{
		"NotFound": kube.IsNotFound, "Exists": kube.IsAlreadyExists, "Conflict": kube.IsConflict, "Refused": kube.IsRefused,
		"Forbidden": kube.IsForbidden, "TooLarge": kube.IsTooLarge, "Unavailable": kube.IsUnavailable,
		"Misdirected": kube.IsMisdirected,
	}
	for _, c := range []struct {
		status          int
		reason, message string
		is              string
	}{
		{400, "BadRequest", "no", ""},
		{403, "Forbidden", `User "someone" cannot get`, "Forbidden"},
		{404, "NotFound", "no", "NotFound"},
		{409, "AlreadyExists", "no", "Exists"},
		{409, "Conflict", "no", "Conflict"},
		{410, "Expired", "no", ""},
		{413, "RequestEntityTooLarge", "no", "TooLarge"},
		{422, "Invalid", "no", "Refused"},
		{500, "InternalError", "etcdserver: request is too large", "TooLarge"},
	} {
		server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) { refuse(w, c.status, c.reason, c.message) })
		_, err := server.Get(within(t, 5*time.Second), pools, "x")
		wants(t, err, "get ippools kube-system/x at "+server.URL, c.message, fmt.Sprint(c.status), c.reason)
		for name, check := range checks {
			if got := check(fmt.Errorf("wrapped: %w", err)); got != (name == c.is) {
				t.Errorf("%d %s %q: %s is %v", c.status, c.reason, c.message, name, got)
			}
		}
		if n := server.requests.Load(); n != 1 {
			t.Errorf("%d %s: %d requests", c.status, c.reason, n)
		}
	}
}

func TestErrorSaysHowOftenAndHowLong(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := newFaulty(t, 0, func(n int64, w http.ResponseWriter, r *http.Request) {
		if n == 4 { // ends with the caller's context, so its error is less useful than the three before
			time.AfterFunc(time.Second, cancel)
			<-r.Context().Done()
			return
		}
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "etcd is away")
	})
	_, err := server.Get(ctx, pools, "x")
	wants(t, err, "get ippools kube-system/x", server.URL, "etcd is away", "503", "4 times in ")
	var e *kube.Error
	if !errors.As(err, &e) || e.Tries != 4 || e.Tried < time.Second || e.Status != 503 || e.Verb != "get" {
		t.Errorf("%+v", e)
	}
	if !kube.IsUnavailable(err) || failure.KindOf(err) != failure.TryAgain {
		t.Errorf("code %d of %v", cnierr.Code(err), err)
	}
}

// Waiting beyond the caller's deadline is useless.
func TestNoWaitBeyondTheDeadline(t *testing.T) {
	server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		refuse(w, http.StatusTooManyRequests, "TooManyRequests", "too many")
	})
	began := time.Now()
	if _, err := server.Get(within(t, 25*time.Second), pools, "x"); !kube.IsUnavailable(err) {
		t.Error(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("waited %s for a time after its own", took)
	}
}

func TestCanceledWhileWaiting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		refuse(w, http.StatusTooManyRequests, "TooManyRequests", "too many")
		time.AfterFunc(50*time.Millisecond, cancel)
	})
	began := time.Now()
	_, err := server.Get(ctx, pools, "x")
	wants(t, err, "too many")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a canceled request lasted %s", took)
	}
}

func TestNothingListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	path := kubeconfig(t, "https://"+address, "insecure-skip-tls-verify: true", "token: t")
	err = open(t, kube.Config{Kubeconfig: path}).Delete(within(t, 3*time.Second), pools, "x", kube.Preconditions{})
	wants(t, err, "delete ippools kube-system/x at https://"+address, "connection refused", "kubeconfig "+path, "times in")
	if !kube.IsUnavailable(err) || failure.KindOf(err) != failure.TryAgain {
		t.Errorf("code %d of %v", cnierr.Code(err), err)
	}
}

// A load balancer that forgets a connection sends no message: only a new
// connection helps.
func TestConnectionThatDiedSilently(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, pool) }))
	between := newBalancer(t, server)
	client := open(t, kube.Config{Kubeconfig: kubeconfig(t, "https://"+between.Addr().String(), ca(a), "token: t"), Timeout: 500 * time.Millisecond})
	get := func() error {
		_, err := client.Get(within(t, 20*time.Second), pools, "x")
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	const many = 20
	errs := make(chan error)
	for range many {
		go func() { errs <- get() }()
	}
	for range many {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := between.connections.Load(); n != 1 {
		t.Errorf("%d connections for %d requests", n, many+1)
	}
	between.forget()
	if err := get(); err != nil {
		t.Errorf("after the connection was forgotten: %v", err)
	}
}

func TestNotAnAPIServer(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>welcome</html>"))
	}))
	defer plain.Close()
	for _, c := range []struct{ server, want string }{
		{plain.URL, "text/html"},
		{strings.Replace(plain.URL, "http:", "https:", 1), "HTTP response to HTTPS client"},
	} {
		_, err := open(t, kube.Config{Kubeconfig: kubeconfig(t, c.server, "disable-compression: true", "{}")}).Get(within(t, 5*time.Second), pools, "x")
		wants(t, err, c.want)
		if kube.IsUnavailable(err) || !kube.IsMisdirected(err) {
			t.Errorf("%s: %v is said to pass, or to be an API server's", c.server, err)
		}
	}
}

// An endless answer must not fill the memory: another may have named the
// server.
func TestAnEndlessAnswerIsGivenUp(t *testing.T) {
	for name, ask := range map[string]func(c *kube.Client, ctx context.Context) error{
		"get": func(c *kube.Client, ctx context.Context) error { _, err := c.Get(ctx, pools, "x"); return err },
		"watch": func(c *kube.Client, ctx context.Context) error {
			return c.Watch(ctx, pools, kube.ListOptions{}, func(kube.Event) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			const most = 256 << 20
			var tries, sent atomic.Int64
			server := newFaulty(t, time.Minute, func(_ int64, w http.ResponseWriter, _ *http.Request) {
				tries.Add(1)
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"type":"ADDED","object":"`))
				for chunk := bytes.Repeat([]byte("x"), 1<<20); sent.Load() < most; sent.Add(int64(len(chunk))) {
					if _, err := w.Write(chunk); err != nil {
						return
					}
				}
			})
			err := ask(server.Client, within(t, 20*time.Second))
			if err == nil || kube.IsUnavailable(err) && name == "get" {
				t.Errorf("%v is said to pass", err)
			}
			if name == "get" {
				wants(t, err, "larger than 64 MiB", "not from an API server")
			}
			if n := sent.Load(); n >= most || tries.Load() != 1 {
				t.Errorf("the server could send %d MiB, in %d tries", n>>20, tries.Load())
			}
		})
	}
}

// A webhook that denies a request may omit the reason: it is still the API
// server's answer.
func TestDenialWithoutAReasonIsTheServers(t *testing.T) {
	server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusBadRequest, "", "denied") })
	_, err := server.Get(within(t, 5*time.Second), pools, "x")
	wants(t, err, "denied")
	if kube.IsMisdirected(err) {
		t.Errorf("%v is said not to be the server's", err)
	}
}

// A lost answer to a write: the write was done, and its repetition shows it.
func TestLostAnswerToACreate(t *testing.T) {
	created := map[string]bool{}
	server := newFaulty(t, 0, func(n int64, w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if created[string(body)] {
			refuse(w, http.StatusConflict, "AlreadyExists", "exists")
			return
		}
		created[string(body)] = true
		panic(http.ErrAbortHandler)
	})
	_, err := server.Create(within(t, 5*time.Second), pools, map[string]any{"metadata": kube.Meta{Name: "x"}})
	wants(t, err, "create ippools kube-system/x", "2 times")
	if !kube.IsAlreadyExists(err) {
		t.Error(err)
	}
}

func TestNamesThatWouldBeOtherPaths(t *testing.T) {
	server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "{}") })
	for _, name := range []string{"", ".", "..", "a/b", "a%2fb"} {
		if err := server.Delete(within(t, time.Second), pools, name, kube.Preconditions{}); err == nil || kube.IsUnavailable(err) {
			t.Errorf("deleting %q: %v", name, err)
		}
	}
	outside := pools
	outside.Namespace = ".."
	if _, err := server.Get(within(t, time.Second), outside, "x"); err == nil {
		t.Error("a namespace was a path")
	}
	if _, err := server.Create(within(t, time.Second), pools, func() {}); err == nil {
		t.Error("a function was an object")
	}
	if n := server.requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// listing answers three pages of two objects, and 410 if expired returns true.
func listing(t *testing.T, expired func(n int64, token string) bool) *faulty {
	t.Helper()
	return newFaulty(t, 0, func(n int64, w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		token := query.Get("continue")
		if query.Get("limit") != "2" || token != "" && query.Has("resourceVersion") {
			t.Errorf("asked for %s", r.URL)
		}
		if expired(n, token) {
			refuse(w, http.StatusGone, "Expired", "the provided continue parameter is too old")
			return
		}
		next := map[string]string{"": "b", "b": "c", "c": ""}[token]
		answer(w, http.StatusOK, fmt.Sprintf(`{"metadata":{"resourceVersion":"9","continue":%q},"items":[{"n":"%s1"},{"n":"%s2"}]}`, next, token, token))
	})
}

func TestListIsExpiredBetweenPages(t *testing.T) {
	for _, c := range []struct {
		name    string
		expired func(n int64, token string) bool
		options kube.ListOptions
		want    []string
		fails   bool
	}{
		{"never", func(int64, string) bool { return false }, kube.ListOptions{}, []string{"1", "2", "b1", "b2", "c1", "c2"}, false},
		{"once", func(n int64, _ string) bool { return n == 3 }, kube.ListOptions{ResourceVersion: "5"}, []string{"1", "2", "b1", "b2", "1", "2", "b1", "b2", "c1", "c2"}, false},
		{"always", func(_ int64, token string) bool { return token == "b" }, kube.ListOptions{}, []string{"1", "2", "1", "2", "1", "2", "1", "2"}, true},
		{"the version asked for", func(int64, string) bool { return true }, kube.ListOptions{ResourceVersion: "5"}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Limit = 2
			var got []string
			version, err := listing(t, c.expired).List(within(t, 10*time.Second), pools, c.options, func(item []byte) error {
				got = append(got, strings.TrimSuffix(strings.TrimPrefix(string(item), `{"n":"`), `"}`))
				return nil
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("saw %q, not %q", got, c.want)
			}
			if c.fails {
				if !errors.Is(err, kube.ErrExpired) {
					t.Errorf("%v", err)
				}
			} else if err != nil || version != "9" {
				t.Errorf("version %q, %v", version, err)
			}
		})
	}
}

// A list of thousands of small pools must not take hundreds of requests, and a list of
// large pools must not take hundreds of megabytes.
func TestPagesOfAListAdaptToTheSizeOfObjects(t *testing.T) {
	const mib = 1 << 20
	long := strings.Repeat("x", 2*mib+100)
	for what, tc := range map[string]struct {
		objects int
		size    func(i int) int
		limits  []int64 // of the pages
	}{
		"small objects":     {1000, func(int) int { return 100 }, []int64{20, 40, 80, 160, 320, 500}},
		"large objects":     {20, func(int) int { return mib }, []int64{20}},
		"larger later":      {100, func(i int) int { return 100 + i/60*mib }, []int64{20, 40, 80}},
		"large ones first":  {60, func(i int) int { return max(100, mib-i/20*mib) }, []int64{20, 10, 20, 40}},
		"too large at once": {340, func(i int) int { return 100 + i/300*2*mib }, []int64{20, 40, 80, 160, 320, 80, 20, 10, 5}},
	} {
		t.Run(what, func(t *testing.T) {
			var limits []int64
			server := newFaulty(t, time.Minute, func(_ int64, w http.ResponseWriter, r *http.Request) {
				limit, err := strconv.ParseInt(r.URL.Query().Get("limit"), 10, 64)
				if err != nil {
					t.Error(err)
				}
				limits = append(limits, limit)
				from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
				to := min(from+int(limit), tc.objects)
				next := ""
				if to < tc.objects {
					next = strconv.Itoa(to)
				}
				// The answer is written piece by piece, because to compose 80 MiB takes longer than a request may take.
				answer(w, http.StatusOK, fmt.Sprintf(`{"metadata":{"resourceVersion":"9","continue":%q},"items":[`, next))
				for i := from; i < to; i++ {
					if i > from {
						_, _ = io.WriteString(w, ",")
					}
					for _, piece := range []string{`"`, long[:tc.size(i)], `"`} {
						_, _ = io.WriteString(w, piece)
					}
				}
				_, _ = io.WriteString(w, "]}")
			})
			seen := 0
			_, err := server.List(within(t, 10*time.Minute), pools, kube.ListOptions{Limit: 20, PageBytes: 16 * mib}, func([]byte) error { seen++; return nil })
			if err != nil || seen != tc.objects {
				t.Errorf("saw %d of %d: %v", seen, tc.objects, err)
			}
			if n := min(len(limits), len(tc.limits)); !slices.Equal(limits[:n], tc.limits[:n]) || len(limits) < len(tc.limits) {
				t.Errorf("pages of %d objects, want %d first", limits, tc.limits)
			}
			t.Logf("%d requests: %d", len(limits), limits)
		})
	}
}

var errEnough = errors.New("enough")

func TestListAndWatchStopWhenTold(t *testing.T) {
	server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("watch") {
			answer(w, http.StatusOK, `{"type":"ADDED","object":{}}`+"\n")
			flush(w)
			<-r.Context().Done()
			return
		}
		answer(w, http.StatusOK, `{"metadata":{"continue":"more"},"items":[{},{}]}`)
	})
	seen := 0
	if _, err := server.List(within(t, 5*time.Second), pools, kube.ListOptions{}, func([]byte) error { seen++; return errEnough }); err != errEnough { //nolint:errorlint // as it is
		t.Error(err)
	}
	if err := server.Watch(within(t, 5*time.Second), pools, kube.ListOptions{}, func(kube.Event) error { seen++; return errEnough }); err != errEnough { //nolint:errorlint // as it is
		t.Error(err)
	}
	if seen != 2 {
		t.Errorf("%d objects", seen)
	}
}

func TestHowAWatchEnds(t *testing.T) {
	const timeout = 300 * time.Millisecond
	event := `{"type":"ADDED","object":{"n":1}}` + "\n"
	for _, c := range []struct {
		name  string
		serve func(n int64, w http.ResponseWriter, r *http.Request)
		check func(error) bool
	}{
		{"the server ends it", func(_ int64, w http.ResponseWriter, _ *http.Request) { answer(w, 200, event) }, func(err error) bool { return err == nil }},
		{"it begins at the second try", func(n int64, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				<-r.Context().Done()
				return
			}
			answer(w, 200, event)
		}, func(err error) bool { return err == nil }},
		{"it lasts longer than a request may", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			answer(w, 200, "")
			flush(w)
			time.Sleep(3 * timeout)
			_, _ = w.Write([]byte(event))
		}, func(err error) bool { return err == nil }},
		{"the connection breaks", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			answer(w, 200, event+event[:10])
			flush(w)
			panic(http.ErrAbortHandler)
		}, kube.IsUnavailable},
		{"the version is too old, at once", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusGone, "Expired", "too old resource version: 1 (9)")
		}, expired},
		{"the version is too old, later", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			answer(w, 200, event+`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version: 1 (9)"}}`)
		}, expired},
		{"another error", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			answer(w, 200, event+`{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError","message":"etcd event received"}}`)
		}, kube.IsUnavailable},
		{"forbidden", func(_ int64, w http.ResponseWriter, _ *http.Request) { refuse(w, 403, "Forbidden", "no") }, kube.IsForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			events := 0
			server := newFaulty(t, timeout, c.serve)
			err := server.Watch(within(t, 10*time.Second), pools, kube.ListOptions{ResourceVersion: "1"}, func(e kube.Event) error {
				events++
				if e.Type != "ADDED" || string(e.Object) != `{"n":1}` {
					t.Errorf("event %+v", e)
				}
				return nil
			})
			if !c.check(err) {
				t.Errorf("ended with %v", err)
			}
			if err == nil && events != 1 {
				t.Errorf("%d events", events)
			}
		})
	}
}

func expired(err error) bool { return errors.Is(err, kube.ErrExpired) && !kube.IsUnavailable(err) }

func TestAWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, `{"type":"ADDED","object":{}}`+"\n")
		flush(w)
		<-r.Context().Done()
	})
	err := server.Watch(ctx, pools, kube.ListOptions{}, func(kube.Event) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestPatchOpsKeepTheirNull(t *testing.T) {
	var got string
	server := newFaulty(t, 0, func(_ int64, w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = r.Method + " " + r.Header.Get("Content-Type") + " " + r.URL.Path + " " + string(body)
		answer(w, http.StatusOK, pool)
	})
	meta, err := server.Patch(within(t, 5*time.Second), pools, "x", []kube.PatchOp{
		{Op: "test", Path: "/a/" + kube.Escape("~b/c")},
		{Op: "add", Path: "/a", Value: map[string]int{"n": 1}},
		{Op: "remove", Path: "/d"},
	})
	if err != nil || meta.ResourceVersion != "7" {
		t.Errorf("%+v, %v", meta, err)
	}
	const want = `PATCH application/json-patch+json /apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools/x ` +
		`[{"op":"test","path":"/a/~0b~1c","value":null},{"op":"add","path":"/a","value":{"n":1}},{"op":"remove","path":"/d"}]`
	if got != want {
		t.Errorf("sent %s\nnot  %s", got, want)
	}
}

func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

// TestTokenIsNotBoundByAServerThatCannot uses a server like those before
// Kubernetes 1.31.
func TestTokenIsNotBoundByAServerThatCannot(t *testing.T) {
	server := newFaulty(t, time.Second, func(_ int64, w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(body), "boundObjectRef") {
			refuse(w, http.StatusBadRequest, "BadRequest", `cannot bind token to object of type "/v1, Kind=Node"`)
			return
		}
		answer(w, http.StatusCreated, `{"status":{"token":"t","expirationTimestamp":"2030-01-01T00:00:00Z"}}`)
	})
	token, err := server.Token(t.Context(), "kube-system", "account", "node1", time.Hour)
	if err != nil || token.Value != "t" || token.Unbound == nil || !strings.Contains(token.Unbound.Error(), "cannot bind") {
		t.Errorf("%+v, %v", token, err)
	}
}

// The server's clock may differ from this machine's.
func TestServerTimeFollowsTheDateOfTheLastAnswer(t *testing.T) {
	dates := []time.Time{time.Now().Add(-time.Hour), time.Now().Add(time.Hour)}
	server := newFaulty(t, time.Second, func(n int64, w http.ResponseWriter, _ *http.Request) {
		if n <= int64(len(dates)) {
			w.Header().Set("Date", dates[n-1].UTC().Format(http.TimeFormat))
		} else {
			w.Header()["Date"] = nil
		}
		refuse(w, http.StatusNotFound, "NotFound", "none") // an answer, too
	})
	if now, ok := server.ServerTime(); ok {
		t.Errorf("before the first answer it is %s", now)
	}
	for _, want := range append(dates, dates[1]) { // the third answer has none
		if _, err := server.Get(within(t, 10*time.Second), pools, "x"); !kube.IsNotFound(err) {
			t.Fatal(err)
		}
		now, ok := server.ServerTime()
		if late := now.Sub(want); !ok || late < -time.Second || late > 10*time.Second {
			t.Errorf("it is %s, want about %s", now, want)
		}
	}
}
