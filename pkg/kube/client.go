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

// Resource is a kind of object, in one namespace or in none.
type Resource struct {
	Group, Version, Plural string // "", "v1", "pods"
	Namespace              string // "" of what is cluster-scoped, and for List and Watch of all namespaces
}

// Meta is the metadata of an object that its JSON has under "metadata".
type Meta struct {
	Name              string            `json:"name,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	CreationTimestamp time.Time         `json:"creationTimestamp,omitzero"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

// ListOptions narrow what List and Watch give.
type ListOptions struct {
	Limit         int64 // objects of one page, 500 when 0; List only
	LabelSelector string
	FieldSelector string

	// ResourceVersion for List: "" is the newest state, "0" any that the
	// server has at hand (which then ignores Limit). For Watch: where to begin,
	// mostly what List returned; "" gives all that is there as ADDED first.
	ResourceVersion string

	MetadataOnly bool          // objects come with their metadata alone
	Timeout      time.Duration // after which the server ends a Watch, in whole seconds; its own choice when 0 (30 to 60 min)
}

// PatchOp is one step of a JSON patch (RFC 6902): add, remove, replace or
// test. A "test" of a Value nil holds when the path is null or does not exist.
type PatchOp struct {
	Op    string
	Path  string // JSON pointer, see [Escape]
	Value any    // anything that encoding/json takes; nil is null; not for remove
}

// MarshalJSON writes the value also when it is null.
func (o PatchOp) MarshalJSON() ([]byte, error) {
	step := map[string]any{"op": o.Op, "path": o.Path}
	if o.Op != "remove" {
		step["value"] = o.Value
	}
	return json.Marshal(step)
}

// Escape makes s one token of a JSON pointer (RFC 6901).
func Escape(s string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(s)
}

// Preconditions of a Delete; empty ones are not asked for.
type Preconditions struct {
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

const (
	plainJSON    = "application/json"
	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

	defaultLimit = 500

	// A continue token lives as long as etcd keeps old revisions (5 minutes
	// at least). A list that is too slow for that will be so again.
	maxListRestarts = 3
)

// Get returns the object's JSON, which is the caller's.
func (c *Client) Get(ctx context.Context, r Resource, name string) ([]byte, error) {
	return c.send(ctx, request{verb: "get", method: http.MethodGet, resource: r, name: name, accept: plainJSON})
}

// List calls each with the JSON of every object, page by page, and returns the
// list's resource version, where a Watch may begin. When the server forgets
// the list between two pages, it begins anew: each may see an object again. One
// page is held in memory at a time. An error of each ends the list, and is
// returned as it is.
func (c *Client) List(ctx context.Context, r Resource, o ListOptions, each func(item []byte) error) (string, error) {
	if o.Limit <= 0 {
		o.Limit = defaultLimit
	}
	accept := plainJSON
	if o.MetadataOnly {
		accept = metadataList
	}
	next, restarts := "", 0
	for {
		query := o.query()
		query.Set("limit", strconv.FormatInt(o.Limit, 10))
		if next != "" {
			query.Set("continue", next)
			query.Del("resourceVersion") // the token has it; both is an error
		}
		q := request{verb: "list", method: http.MethodGet, resource: r, query: query, accept: accept}
		body, err := c.send(ctx, q)
		if errors.Is(err, ErrExpired) && next != "" && restarts < maxListRestarts {
			next, restarts = "", restarts+1
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
	}
}

// Create makes an object. When the answer to it is lost, the repeated request
// answers [Exists]: then the caller must look whose the object is.
func (c *Client) Create(ctx context.Context, r Resource, object any) (Meta, error) {
	q := request{verb: "create", method: http.MethodPost, resource: r, accept: metadataOnly, contentType: plainJSON}
	// For errors: the path of a create does not have the object's name.
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

// Patch applies all steps, or none: [Refused] when a test among them fails. The
// server itself repeats a patch that races with another's, five times, and then
// answers [Conflict]; at once, when a step sets the resourceVersion to one that
// is old. When the answer is lost, the repeated request is mostly Refused by
// what the first one did: then the caller must look.
func (c *Client) Patch(ctx context.Context, r Resource, name string, ops []PatchOp) (Meta, error) {
	return c.patch(ctx, r, name, "application/json-patch+json", ops)
}

// MergePatch sets the fields that patch has, and removes those that are null
// in it (RFC 7386). It may be repeated at will, unless it has a
// resourceVersion: then a lost answer makes the repeated request a [Conflict].
func (c *Client) MergePatch(ctx context.Context, r Resource, name string, patch any) (Meta, error) {
	return c.patch(ctx, r, name, "application/merge-patch+json", patch)
}

func (c *Client) patch(ctx context.Context, r Resource, name, contentType string, patch any) (Meta, error) {
	q := request{verb: "patch", method: http.MethodPatch, resource: r, name: name, accept: metadataOnly, contentType: contentType}
	var err error
	if q.body, err = json.Marshal(patch); err != nil {
		return Meta{}, c.unreadable(q, err)
	}
	return c.sendForMeta(ctx, q)
}

// Delete removes the object, or with finalizers marks it. [Conflict] when a
// precondition does not hold. When the answer is lost, the repeated request
// answers [NotFound]; or, when the name was given again in between, Conflict
// by the UID. Without a UID it would delete the new object.
func (c *Client) Delete(ctx context.Context, r Resource, name string, p Preconditions) error {
	q := request{verb: "delete", method: http.MethodDelete, resource: r, name: name, accept: plainJSON, contentType: plainJSON}
	options := struct {
		Kind          string         `json:"kind"`
		APIVersion    string         `json:"apiVersion"`
		Preconditions *Preconditions `json:"preconditions,omitempty"`
	}{Kind: "DeleteOptions", APIVersion: "v1"}
	if p != (Preconditions{}) {
		options.Preconditions = &p
	}
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

// path is the resource's, or the object's, below the server's URL. Source:
// Kubernetes, "API concepts", resource URIs.
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

// InPath reports whether a name can be part of an object's path. It is what the
// server itself demands: one that fails it would be another path, and a DELETE
// of that another object.
func InPath(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/%")
}

// String is like "ippools.whereabouts.cni.cncf.io".
func (r Resource) String() string {
	if r.Group == "" {
		return r.Plural
	}
	return r.Plural + "." + r.Group
}
