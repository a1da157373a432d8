package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// Token is a token of a service account.
type Token struct {
	Value   string
	Expires time.Time
	// Unbound is the reason why the token is not bound to the requested Node. It is nil if
	// the token is bound, or if no Node was requested.
	Unbound error
}

// Token requests a token of a service account (TokenRequest of authentication.k8s.io/v1).
// The token ends after lifetime, which the server may change, or when the account is
// deleted. If node is not "", the token also ends with the Node object of that name, and
// the server knows for each request with the token which node made it
// (ServiceAccountTokenNodeBinding, Kubernetes 1.31). If the server refuses to bind the
// token, because it is older or has no such Node, the token is not bound. Token needs the
// right to create serviceaccounts/token.
func (c *Client) Token(ctx context.Context, namespace, account, node string, lifetime time.Duration) (Token, error) {
	spec := map[string]any{"expirationSeconds": int64(lifetime / time.Second)}
	if node == "" {
		return c.token(ctx, namespace, account, spec)
	}
	// Without a UID in the reference, the server uses the UID of the existing Node.
	spec["boundObjectRef"] = map[string]any{"apiVersion": "v1", "kind": "Node", "name": node}
	bound, err := c.token(ctx, namespace, account, spec)
	if !is(err, (*Error).refusesBinding) {
		return bound, err
	}
	delete(spec, "boundObjectRef")
	unbound, again := c.token(ctx, namespace, account, spec)
	unbound.Unbound = err
	return unbound, again
}

// refusesBinding reports whether the server refuses to bind the token to the Node. A 400 or
// 422 means that the server cannot bind tokens to Nodes
// (pkg/registry/core/serviceaccount/storage/token.go of Kubernetes). A 404 means that it
// has no such Node.
func (e *Error) refusesBinding() bool {
	return e.Status == http.StatusBadRequest || e.Status == http.StatusNotFound || e.Status == http.StatusUnprocessableEntity
}

func (c *Client) token(ctx context.Context, namespace, account string, spec map[string]any) (Token, error) {
	q := request{
		resource: Resource{Version: "v1", Plural: "serviceaccounts", Namespace: namespace}, name: account, sub: "token",
	}
	var answer struct {
		Status struct {
			Token               string    `json:"token"`
			ExpirationTimestamp time.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	if err := c.ask(ctx, q, "authentication.k8s.io/v1", "TokenRequest", spec, &answer); err != nil {
		return Token{}, err
	}
	if answer.Status.Token == "" {
		return Token{}, c.unreadable(q, errors.New("the answer has no token"))
	}
	return Token{Value: answer.Status.Token, Expires: answer.Status.ExpirationTimestamp}, nil
}

// ask creates a review or request, which the server answers without storing an
// object, and decodes the answer.
func (c *Client) ask(ctx context.Context, q request, apiVersion, kind string, spec map[string]any, answer any) error {
	q.verb, q.method, q.accept, q.contentType = "create", http.MethodPost, plainJSON, plainJSON
	var err error
	if q.body, err = json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": kind, "spec": spec}); err != nil {
		return c.unreadable(q, err)
	}
	body, err := c.send(ctx, q)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return c.unreadable(q, err)
	}
	return nil
}

// Indirect reports whether the kubeconfig leads to the server through a proxy, or names the
// server by another name than the name in its URL.
func (c *Client) Indirect() bool {
	loaded, err := c.config.load()
	return err == nil && (loaded.Transport.Proxy != nil || loaded.Transport.TLS.ServerName != "")
}

// CA returns the certificates with which the server's certificate is verified, as PEM. It
// returns nil if they are the system's certificates. It reads the files again.
func (c *Client) CA() ([]byte, error) {
	loaded, err := c.config.load()
	if err != nil {
		return nil, err
	}
	ca := loaded.Transport.TLS
	if len(ca.CAData) > 0 || ca.CAFile == "" {
		return ca.CAData, nil
	}
	data, err := os.ReadFile(ca.CAFile)
	return data, failure.From(err, failure.InvalidConfig, "%s", loaded.source).Cure("make the file with the certificates readable")
}
