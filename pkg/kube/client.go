package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Resource is a kind of object, in one namespace, in all namespaces or without a namespace.
type Resource struct {
	Group, Version, Plural string // "", "v1", "pods"
	Namespace              string // "" if cluster-scoped, and for List and Watch of all namespaces
}

// Meta is the metadata of an object. In the object's JSON it is under "metadata".
type Meta struct {
	Name              string            `json:"name,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	CreationTimestamp time.Time         `json:"creationTimestamp,omitzero"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

// ListOptions restrict the results of List and Watch.
type ListOptions struct {
	Limit         int64 // number of objects in one page, 500 if 0; only for List
	PageBytes     int   // if not 0, List makes pages of about this size; Limit applies only to the first page
	LabelSelector string
	FieldSelector string

	// ResourceVersion selects the state. For List, "" means the newest state, and "0" any
	// state that the server has cached; with "0" the server ignores Limit. For Watch it is
	// where the watch begins, mostly the result of List. If it is "", Watch first reports
	// all existing objects as ADDED.
	ResourceVersion string

	MetadataOnly bool          // the objects have only their metadata
	Timeout      time.Duration // after which the server ends a Watch, in whole seconds; the server's choice if 0 (30 to 60 min)
}

// PatchOp is one step of a JSON patch (RFC 6902): add, remove, replace or test.
// A "test" with a nil Value succeeds if the path is null or does not exist.
type PatchOp struct {
	Op    string
	Path  string // JSON pointer, see [Escape]
	Value any    // any value for encoding/json; nil means null; ignored by remove
}

// MarshalJSON writes the step as JSON. It writes the value even if it is null.
func (o PatchOp) MarshalJSON() ([]byte, error) {
	step := map[string]any{"op": o.Op, "path": o.Path}
	if o.Op != "remove" {
		step["value"] = o.Value
	}
	return json.Marshal(step)
}

// Escape returns s as one token of a JSON pointer (RFC 6901).
func Escape(s string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(s)
}

// Preconditions are the preconditions of a Delete. An empty field is not checked.
type Preconditions struct {
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

const (
	plainJSON    = "application/json"
	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

	defaultLimit = 500

	// maxListRestarts bounds how often a list starts again. A continue token is valid as
	// long as etcd keeps old revisions, at least 5 minutes. A slower list would fail again.
	maxListRestarts = 3
)

// Get returns the object's JSON, which the caller owns.
func (c *Client) Get(ctx context.Context, r Resource, name string) ([]byte, error) {
	return c.send(ctx, request{verb: "get", method: http.MethodGet, resource: r, name: name, accept: plainJSON})
}

// GetMeta returns the object's metadata without the rest of the object.
func (c *Client) GetMeta(ctx context.Context, r Resource, name string) (Meta, error) {
	return c.sendForMeta(ctx, request{verb: "get", method: http.MethodGet, resource: r, name: name, accept: metadataOnly})
}

// List calls each with the JSON of every object, page by page. It returns the list's
// resource version, at which a Watch may begin. If the server forgets the list between two
// pages, List starts again, so each may see an object twice. One page is held in memory at
// a time. If each returns an error, List ends and returns that error unchanged.
func (c *Client) List(ctx context.Context, r Resource, o ListOptions, each func(item []byte) error) (string, error) {
	if o.Limit <= 0 {
		o.Limit = defaultLimit
	}
	accept := plainJSON
	if o.MetadataOnly {
		accept = metadataList
	}
	next, restarts := "", 0
	for limit := o.Limit; ; {
		query := o.query()
		query.Set("limit", strconv.FormatInt(limit, 10))
		if next != "" {
			query.Set("continue", next)
			query.Del("resourceVersion") // the token contains the resource version, and the server refuses both together
		}
		q := request{verb: "list", method: http.MethodGet, resource: r, query: query, accept: accept}
		body, err := c.send(ctx, q)
		if errors.Is(err, ErrExpired) && next != "" && restarts < maxListRestarts {
			next, restarts = "", restarts+1
			continue
		}
		if errors.Is(err, errTooMuch) && o.PageBytes > 0 && limit > 1 {
			limit = max(limit/4, 1)
			continue
		}
		if err != nil {
			return "", err
		}
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return "", c.unreadable(q, err)
		}
		for _, item := range page.Items {
			if err := each(item); err != nil {
				return "", err
			}
		}
		if next = page.Metadata.Continue; next == "" {
			return page.Metadata.ResourceVersion, nil
		}
		limit = o.nextLimit(limit, len(body))
	}
}

// nextLimit returns the number of objects for the next page, after a page of limit objects
// had so many bytes. The new number is at most twice limit, because the sizes of objects
// differ.
func (o ListOptions) nextLimit(limit int64, bytes int) int64 {
	switch {
	case o.PageBytes == 0:
	case bytes > o.PageBytes:
		return max(limit/2, 1)
	case bytes < o.PageBytes/2:
		return min(2*limit, defaultLimit)
	}
	return limit
}

// Create creates an object. If the answer is lost, the request is repeated, and returns an
// error for which [IsAlreadyExists] is true. The caller must then check whose object
// exists.
func (c *Client) Create(ctx context.Context, r Resource, object any) (Meta, error) {
	q := request{verb: "create", method: http.MethodPost, resource: r, accept: metadataOnly, contentType: plainJSON}
	// The errors need the object's name, which the path of a create does not have.
	var named struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	body, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(body, &named)
	}
	if err != nil {
		return Meta{}, c.unreadable(q, err)
	}
	q.body, q.creates = body, named.Metadata.Name
	return c.sendForMeta(ctx, q)
}

// Patch applies all steps, or none. If a test among the steps fails, it returns an error
// for which [IsRefused] is true.
//
// If a patch races with another one, the server itself repeats it for as long as the
// request may take, and then answers that it took too long (k8s.io/apiserver,
// GuaranteedUpdate). Each repetition costs the server as much as the first try. If a step
// sets the resourceVersion to an old one, the server does not repeat the patch:
// [IsConflict] is true for the error.
//
// If the answer is lost, the repeated request is mostly refused, because the first request
// has changed the object. The caller must then check the object.
func (c *Client) Patch(ctx context.Context, r Resource, name string, ops []PatchOp) (Meta, error) {
	return c.patch(ctx, r, name, "application/json-patch+json", ops)
}

// MergePatch sets the fields in patch, and removes the fields that are null in patch (RFC
// 7386). It may be repeated, except if patch has a resourceVersion: if an answer is lost
// then, [IsConflict] is true for the error of the repeated request.
func (c *Client) MergePatch(ctx context.Context, r Resource, name string, patch any) (Meta, error) {
	return c.patch(ctx, r, name, "application/merge-patch+json", patch)
}

// PatchStatus sets fields of an object's status to those in patch. The kind of the object
// must be built into Kubernetes, because the request is a strategic merge patch: it merges
// the elements of lists by their key, conditions for example by "type". PatchStatus may be
// repeated. It needs the right to patch the subresource status.
func (c *Client) PatchStatus(ctx context.Context, r Resource, name string, patch any) (Meta, error) {
	return c.patchSub(ctx, r, name, "status", "application/strategic-merge-patch+json", map[string]any{"status": patch})
}

func (c *Client) patch(ctx context.Context, r Resource, name, contentType string, patch any) (Meta, error) {
	return c.patchSub(ctx, r, name, "", contentType, patch)
}

func (c *Client) patchSub(ctx context.Context, r Resource, name, sub, contentType string, patch any) (Meta, error) {
	q := request{verb: "patch", method: http.MethodPatch, resource: r, name: name, sub: sub, accept: metadataOnly, contentType: contentType}
	var err error
	if q.body, err = json.Marshal(patch); err != nil {
		return Meta{}, c.unreadable(q, err)
	}
	return c.sendForMeta(ctx, q)
}

// Delete removes the object, or marks it as deleted if it has finalizers. If a precondition
// does not hold, it returns an error for which [IsConflict] is true. If the answer is lost,
// the request is repeated, and [IsNotFound] is true for the error. If the name is in use
// again by then, [IsConflict] is true, because the UID differs. Without a UID in p, the
// repeated request would delete the new object.
func (c *Client) Delete(ctx context.Context, r Resource, name string, p Preconditions) error {
	options := deleteOptions{}
	if p != (Preconditions{}) {
		options.Preconditions = &p
	}
	return c.delete(ctx, r, name, options)
}

// DeleteWithDependents removes the object, and lets the server's garbage collector remove
// the objects that it owns, such as the pods of a Job. [Client.Delete] leaves them.
func (c *Client) DeleteWithDependents(ctx context.Context, r Resource, name string) error {
	return c.delete(ctx, r, name, deleteOptions{Propagation: "Background"})
}

type deleteOptions struct {
	Kind          string         `json:"kind"`
	APIVersion    string         `json:"apiVersion"`
	Preconditions *Preconditions `json:"preconditions,omitempty"`
	Propagation   string         `json:"propagationPolicy,omitempty"`
}

func (c *Client) delete(ctx context.Context, r Resource, name string, options deleteOptions) error {
	q := request{verb: "delete", method: http.MethodDelete, resource: r, name: name, accept: plainJSON, contentType: plainJSON}
	options.Kind, options.APIVersion = "DeleteOptions", "v1"
	var err error
	if q.body, err = json.Marshal(options); err != nil {
		return c.unreadable(q, err)
	}
	_, err = c.send(ctx, q)
	return err
}

func (c *Client) sendForMeta(ctx context.Context, q request) (Meta, error) {
	body, err := c.send(ctx, q)
	if err != nil {
		return Meta{}, err
	}
	var object struct {
		Metadata Meta `json:"metadata"`
	}
	if err := json.Unmarshal(body, &object); err != nil {
		return Meta{}, c.unreadable(q, err)
	}
	return object.Metadata, nil
}

func (o ListOptions) query() url.Values {
	query := url.Values{}
	for key, value := range map[string]string{
		"labelSelector":   o.LabelSelector,
		"fieldSelector":   o.FieldSelector,
		"resourceVersion": o.ResourceVersion,
	} {
		if value != "" {
			query.Set(key, value)
		}
	}
	return query
}

// path returns the resource's or the object's path below the server's URL.
// Source: Kubernetes, "API concepts", resource URIs.
func (r Resource) path(name string) (string, error) {
	prefix := []string{"apis", r.Group, r.Version}
	if r.Group == "" {
		prefix = []string{"api", r.Version}
	}
	if r.Namespace != "" {
		prefix = append(prefix, "namespaces", r.Namespace)
	}
	parts := append(prefix, r.Plural)
	if name != "" {
		parts = append(parts, name)
	}
	for _, part := range parts {
		if !InPath(part) {
			return "", fmt.Errorf("%q cannot be part of an object's path", part)
		}
	}
	return strings.Join(parts, "/"), nil
}

// InPath reports whether a name can be part of an object's path. The server has the same
// condition. Any other name would lead to another path, and a DELETE of it to another
// object.
func InPath(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/%")
}

// String returns, for example, "ippools.whereabouts.cni.cncf.io".
func (r Resource) String() string {
	if r.Group == "" {
		return r.Plural
	}
	return r.Plural + "." + r.Group
}
