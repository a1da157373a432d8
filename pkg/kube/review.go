package kube

import (
	"context"
	"errors"
	"net/http"
)

// User is the user of a token (UserInfo of authentication.k8s.io/v1).
type User struct {
	Name   string              `json:"username"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

// WhoIs returns the user of a token (TokenReview), or false if the server does not know the
// token. It needs the right to create tokenreviews.
func (c *Client) WhoIs(ctx context.Context, token string) (User, bool, error) {
	var answer struct {
		Status struct {
			Authenticated bool `json:"authenticated"`
			User          User `json:"user"`
		} `json:"status"`
	}
	q := request{resource: Resource{Group: "authentication.k8s.io", Version: "v1", Plural: "tokenreviews"}}
	err := c.ask(ctx, q, "authentication.k8s.io/v1", "TokenReview", map[string]any{"token": token}, &answer)
	return answer.Status.User, answer.Status.Authenticated, err
}

// MayGet reports whether the user may get a path that is not a resource, such as
// /metrics (SubjectAccessReview). It needs the right to create
// subjectaccessreviews.
func (c *Client) MayGet(ctx context.Context, user User, path string) (bool, error) {
	var answer struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	q := request{resource: Resource{Group: "authorization.k8s.io", Version: "v1", Plural: "subjectaccessreviews"}}
	err := c.ask(ctx, q, "authorization.k8s.io/v1", "SubjectAccessReview", map[string]any{
		"user": user.Name, "uid": user.UID, "groups": user.Groups, "extra": user.Extra,
		"nonResourceAttributes": map[string]any{"path": path, "verb": "get"},
	}, &answer)
	return answer.Status.Allowed, err
}

// Known reports whether the server knows the client's credentials. It uses a
// SelfSubjectReview (Kubernetes 1.28), which every user may make. Every answer except a 401
// means that the server knows the credentials. A 401 that is not an API server's, but
// perhaps a proxy's, is an error.
func (c *Client) Known(ctx context.Context) (bool, error) {
	q := request{resource: Resource{Group: "authentication.k8s.io", Version: "v1", Plural: "selfsubjectreviews"}}
	err := c.ask(ctx, q, "authentication.k8s.io/v1", "SelfSubjectReview", nil, &struct{}{})
	var answered *Error
	if errors.As(err, &answered) && answered.Status != 0 && !answered.transient() {
		if answered.Status == http.StatusUnauthorized && answered.notAPIServer {
			return false, err
		}
		return answered.Status != http.StatusUnauthorized, nil
	}
	return err == nil, err
}
