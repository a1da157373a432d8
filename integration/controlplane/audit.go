package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// auditPolicy makes kube-apiserver log each request when it arrives and when it
// is answered, without bodies. It leaves out the server's requests to itself,
// and health checks.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  users: ["system:apiserver"]
- level: None
  nonResourceURLs: ["/readyz*", "/livez*", "/healthz*"]
- level: Metadata
`

// Request is one request in kube-apiserver's audit log. The log has no sizes.
type Request struct {
	Received  time.Time
	Latency   time.Duration // until the answer was complete; of a watch that goes on, until it began
	User      string
	UserAgent string
	Verb      string // get, list, watch, create, update, patch, delete, deletecollection
	Resource  string // plural, with "/" and the subresource; "" for a path that is no resource
	Namespace string
	Name      string // "" for a collection
	URI       string
	Code      int // 0 = no answer: not yet, or the server was killed
}

type auditEvent struct {
	AuditID    string
	Stage      string // RequestReceived, ResponseStarted (watches only), ResponseComplete, Panic
	RequestURI string
	Verb       string
	User       struct{ Username string }
	UserAgent  string
	ObjectRef  struct{ Resource, Subresource, Namespace, Name string }

	ResponseStatus           struct{ Code int }
	RequestReceivedTimestamp time.Time
	StageTimestamp           time.Time
}

// Requests returns all requests that were received at or after since, in the
// order of their arrival. It needs [Options.Audit]. The server writes its log
// asynchronously: Requests waits up to 5 s until every logged request has an
// answer, so a request whose answer the caller has seen is present with its
// code.
func (p *Plane) Requests(ctx context.Context, since time.Time) ([]Request, error) {
	if !p.options.Audit {
		return nil, errors.New("the control plane keeps no audit log: start it with Options.Audit")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		p.mu.Lock()
		killed := p.killed
		p.mu.Unlock()
		requests, pending, err := p.readAudit(since, killed)
		if err != nil || pending == 0 {
			return requests, err
		}
		select {
		case <-ctx.Done():
			return requests, nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// readAudit also counts the requests without an answer, except those from
// before the last kill of the server, which never get one.
func (p *Plane) readAudit(since, killed time.Time) (requests []Request, pending int, err error) {
	text, err := os.ReadFile(p.auditLog())
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	index := map[string]int{} // of a request, by its audit id
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the line is incomplete: it is being written
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", p.auditLog(), err)
		}
		if e.RequestReceivedTimestamp.Before(since) {
			continue
		}
		i, known := index[e.AuditID]
		if !known {
			i = len(requests)
			index[e.AuditID] = i
			requests = append(requests, Request{})
		}
		r := Request{
			Received: e.RequestReceivedTimestamp, User: e.User.Username, UserAgent: e.UserAgent, Verb: e.Verb,
			Resource: e.ObjectRef.Resource, Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, URI: e.RequestURI,
		}
		if e.ObjectRef.Subresource != "" {
			r.Resource += "/" + e.ObjectRef.Subresource
		}
		if e.Stage != "RequestReceived" {
			r.Code = e.ResponseStatus.Code
			r.Latency = e.StageTimestamp.Sub(e.RequestReceivedTimestamp)
		}
		requests[i] = r
	}
	for _, r := range requests {
		if r.Code == 0 && r.Received.After(killed) {
			pending++
		}
	}
	return requests, pending, nil
}

// Tally counts requests by "verb resource", for example "patch ippools".
func Tally(requests []Request) map[string]int {
	count := map[string]int{}
	for _, r := range requests {
		count[r.Verb+" "+r.Resource]++
	}
	return count
}

func (p *Plane) auditLog() string { return filepath.Join(p.dir, "audit.log") }
