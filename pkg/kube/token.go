package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// Token asks for a token of a service account (TokenRequest of
// authentication.k8s.io/v1), which ends after lifetime or when the account is
// deleted. The server may give it a shorter life, or a longer one: expires says.
// It needs the right to create serviceaccounts/token.
func (c *Client) Token(ctx context.Context, namespace, account string, lifetime time.Duration) (token string, expires time.Time, err error) {
	q := request{
		verb: "create", method: http.MethodPost, resource: Resource{Version: "v1", Plural: "serviceaccounts", Namespace: namespace},
		name: account, sub: "token", accept: plainJSON, contentType: plainJSON,
	}
	if q.body, err = json.Marshal(map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": int64(lifetime / time.Second)},
	}); err != nil {
		return "", time.Time{}, c.unreadable(q, err)
	}
	body, err := c.send(ctx, q)
	if err != nil {
		return "", time.Time{}, err
	}
	var answer struct {
		Status struct {
			Token               string    `json:"token"`
			ExpirationTimestamp time.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", time.Time{}, c.unreadable(q, err)
	}
	if answer.Status.Token == "" {
		return "", time.Time{}, c.unreadable(q, errors.New("there is no token in it"))
	}
	return answer.Status.Token, answer.Status.ExpirationTimestamp, nil
}

// CA gives the certificates by which the server is known, as PEM; nil when
// those of the system are. It reads the files again.
func (c *Client) CA() ([]byte, error) {
	load, path := loadKubeconfig, c.config.Kubeconfig
	if path == "" {
		load, path = loadServiceAccount, c.config.ServiceAccount
	}
	loaded, err := load(path)
	if err != nil {
		return nil, err
	}
	if err := rest.LoadTLSFiles(loaded.rest); err != nil {
		return nil, cnierr.Wrap(err, cnierr.InvalidConfig, "certificates must be readable", "%s", loaded.source)
	}
	return loaded.rest.CAData, nil
}
