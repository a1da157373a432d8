package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// ErrExpired is wrapped by the error of a List or Watch if the server has forgotten its
// resource version (410). The caller must list again.
var ErrExpired = errors.New("the resource version is too old")

// Error is a failed request. It is often wrapped in a [failure.Error] that has the cure.
type Error struct {
	Verb    string // get, list, watch, create, patch or delete
	Object  string // like "ippools kube-system/10.0.0.0-24"
	Server  string
	Status  int    // HTTP status; 0 if there was no answer, or only a part of it
	Reason  string // of the server's Status object: NotFound, AlreadyExists, …
	Message string // the server's message
	Err     error  // the cause, if it was not the server

	Tries int           // how often the request was sent
	Tried time.Duration // from the first try to the end of the last

	retryAfter   time.Duration
	final        bool // the request itself is wrong
	invalid      bool // the status 422 means that the object is invalid, and not the patch
	notAPIServer bool // the answer is not from an API server
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s %s at %s: ", e.Verb, e.Object, e.Server)
	if e.Message != "" {
		s += e.Message
		if e.Err != nil {
			s += ": "
		}
	}
	if e.Err != nil {
		s += e.Err.Error()
	}
	if e.Status != 0 {
		s += fmt.Sprintf(" (%s)", strings.TrimSpace(fmt.Sprint(e.Status, " ", e.Reason)))
	}
	if e.Tries > 1 {
		s += fmt.Sprintf(", %d times in %s", e.Tries, e.rounded())
	}
	return s
}

// rounded returns Tried in a form for people: rounded to a tenth of a second if it is at
// least a second, and to a millisecond otherwise.
func (e *Error) rounded() time.Duration {
	if e.Tried < time.Second {
		return e.Tried.Round(time.Millisecond)
	}
	return e.Tried.Round(time.Second / 10)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// is reports whether f returns true for an [Error] in err's tree.
func is(err error, f func(*Error) bool) bool {
	var e *Error
	return errors.As(err, &e) && f(e)
}

// IsNotFound reports whether the object does not exist, or for a Create the namespace. It
// returns false if the server does not know the kind of object, because then a CRD is
// missing.
func IsNotFound(err error) bool {
	return is(err, func(e *Error) bool { return e.Status == http.StatusNotFound && e.Reason != "" })
}

// IsAlreadyExists reports whether an object of this name exists already.
func IsAlreadyExists(err error) bool {
	return is(err, func(e *Error) bool { return e.Status == http.StatusConflict && e.Reason == "AlreadyExists" })
}

// IsConflict reports whether the object has another resource version or UID than the
// request asks for, or changed all the time while the server patched it.
func IsConflict(err error) bool {
	return is(err, func(e *Error) bool { return e.Status == http.StatusConflict && e.Reason != "AlreadyExists" })
}

// IsRefused reports whether a test of a JSON patch failed, or a path in the patch does not
// exist. It returns false for an object that violates the CRD's schema.
func IsRefused(err error) bool {
	return is(err, func(e *Error) bool { return e.Status == http.StatusUnprocessableEntity && !e.invalid })
}

// IsForbidden reports whether the server refused the request because the user may not make
// it.
func IsForbidden(err error) bool {
	return is(err, func(e *Error) bool { return e.Status == http.StatusForbidden })
}

// IsTooLarge reports whether the object is too large for the server or etcd.
func IsTooLarge(err error) bool { return is(err, (*Error).tooLarge) }

// IsUnavailable reports whether the server cannot answer now: there was no answer, or the
// status is 429 or 5xx.
func IsUnavailable(err error) bool { return is(err, (*Error).transient) }

// IsMisdirected reports whether the answer is not from the kubeconfig's server. That is so
// if the server's certificate is not trusted, if only one end uses TLS, or if the answer is
// not an API server's, but perhaps a proxy's. It returns false for a 404, which may mean
// that a CRD is missing.
func IsMisdirected(err error) bool { return is(err, (*Error).misdirected) }

func (e *Error) misdirected() bool {
	if e.Status == 0 {
		return e.mistrust()
	}
	return e.notAPIServer && e.Status != http.StatusNotFound && !e.transient() && !e.tooLarge()
}

func (e *Error) tooLarge() bool {
	return e.Status == http.StatusRequestEntityTooLarge ||
		// The limits of etcd and of its gRPC are reported as 500.
		e.Status == http.StatusInternalServerError &&
			(strings.Contains(e.Message, "request is too large") || strings.Contains(e.Message, "larger than max"))
}

func (e *Error) transient() bool {
	switch {
	case e.final, e.tooLarge():
		return false
	case e.Status == 0:
		return !e.mistrust()
	}
	return e.Status == http.StatusTooManyRequests || e.Status >= 500
}

// mistrust reports whether another program than the kubeconfig's server listens at the
// address. A retry does not help then.
func (e *Error) mistrust() bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(e.Err, &certificate) || errors.Is(e.Err, http.ErrSchemeMismatch)
}

func (c *Client) failure(q request, err error) *Error {
	return &Error{Verb: q.verb, Object: q.object(), Server: c.Server(), Err: err, Tries: 1}
}

// unreadable returns the error for a document that encoding/json refuses. The document may
// be the client's or the server's.
func (c *Client) unreadable(q request, err error) error {
	failed := c.failure(q, err)
	failed.final = true
	return failed
}

// refusal reads the Status object of an answer that is not 2xx. Other bodies,
// for example of proxies, are kept as text.
func (c *Client) refusal(ctx context.Context, q request, answer *http.Response) *Error {
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	failed := c.failure(q, nil)
	failed.Status = answer.StatusCode
	failed.retryAfter = retryAfter(answer.Header)
	failed.set(body)
	if failed.Message == "" && err != nil {
		failed.Message = because(ctx, err).Error()
	}
	return failed
}

// set reads a Status object, or keeps its raw text.
func (e *Error) set(body []byte) {
	var status struct {
		Kind    string `json:"kind"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
		Code    int    `json:"code"`
		Details struct {
			Kind string `json:"kind"`
		} `json:"details"`
	}
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" {
		e.Reason, e.Message = status.Reason, status.Message
		if e.Status == 0 {
			e.Status = status.Code
		}
		// The answer to a failed patch has neither details nor a reason.
		e.invalid = status.Details.Kind != ""
		if e.Verb == "patch" && e.Status == http.StatusUnprocessableEntity && !e.invalid {
			e.Message = "a test of the patch failed, or a path in the patch does not exist"
		}
	} else {
		e.notAPIServer = true
		const enough = 200
		e.Message = strings.TrimSpace(string(body[:min(len(body), enough)]))
	}
	if e.Message == "" {
		e.Message = http.StatusText(e.Status)
	}
	if e.Status == http.StatusGone {
		e.Err = ErrExpired
	}
}

// upgrades reports whether the request is for a WebSocket.
func (q request) upgrades() bool { return q.sub == "exec" || q.sub == "attach" }

// quotedVerbs returns the verbs of the rule that allows the request. The request for a
// WebSocket is a GET. Since Kubernetes 1.35 the API server asks for the right to "create"
// as well, but does not mention that when it refuses
// (AuthorizePodWebsocketUpgradeCreatePermission).
func (q request) quotedVerbs() string {
	if q.upgrades() {
		return `"create", "get"`
	}
	return strconv.Quote(q.verb)
}

// forbidden finds the user in the API server's message. It is compiled on first use,
// because otherwise each start of a plugin would pay for it.
var forbidden = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`User "([^"]*)" cannot `) })

// explain adds a kind and a cure if a person can correct the cause of the error. Errors
// that callers expect (NotFound, Exists, Conflict, …) stay unchanged.
func (c *Client) explain(q request, e *Error) error {
	code, cure := failure.InvalidConfig, ""
	switch {
	case e.final:
		return e
	case e.Status == http.StatusUnauthorized:
		cure = fmt.Sprintf("the server refused %s: renew the credentials", c.from.credentials)
	case e.Status == http.StatusForbidden:
		// 403 has other causes than RBAC: quotas, a namespace that is being deleted, or a proxy.
		user := "the user of " + c.from.credentials
		found := forbidden().FindStringSubmatch(e.Message)
		if found != nil {
			user = strconv.Quote(found[1])
		}
		if found != nil || q.upgrades() && !e.notAPIServer {
			cure = fmt.Sprintf("allow it by a rule of a Role or ClusterRole that is bound to %s: apiGroups [%q], resources [%q], verbs [%s]",
				user, q.resource.Group, path.Join(q.resource.Plural, q.sub), q.quotedVerbs())
			if q.resource.Namespace != "" {
				cure += fmt.Sprintf(", in the namespace %q", q.resource.Namespace)
			} else {
				cure += ", in all namespaces"
			}
		}
	case e.Status == http.StatusNotFound && e.Reason == "":
		cure = fmt.Sprintf("the server does not know %s of version %s: apply the CRD", q.resource, q.resource.Version)
	case e.mistrust():
		cure = fmt.Sprintf("check the server and the CA in %s, and the clock", c.from.source)
	case e.transient():
		code = failure.TryAgain
		switch {
		case errors.Is(e.Err, context.Canceled): // the caller knows why
		case errors.Is(e.Err, syscall.ECONNREFUSED):
			cure = fmt.Sprintf("nothing listens there: check that the API server is up, and that the address in %s is right", c.from.source)
		case e.Status == 0 && e.Err != nil && strings.HasPrefix(e.Err.Error(), "getting credentials"):
			cure = fmt.Sprintf("no request is sent without %s: make sure that the program works here", c.from.credentials)
		case e.Status == 0:
			cure = fmt.Sprintf("check that the API server is up, and that this node can reach it; the address is from %s", c.from.source)
		}
	default:
		return e
	}
	return failure.From(e, code, "").Cure("%s", cure)
}
