package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Content types of bodies.
const (
	JSON       = "application/json"
	YAML       = "application/yaml"
	JSONPatch  = "application/json-patch+json"
	MergePatch = "application/merge-patch+json"
)

// Credential identifies a client: a certificate with its key, or a bearer
// token. Without either the client is anonymous.
type Credential struct {
	Certificate, Key []byte // PEM
	Token            string
}

// Client sends requests to kube-apiserver as one user. It knows no types: a
// path is the part of the URL after the server's address, a body is as the
// API's documentation describes it. One try takes 30 s at the most; a request
// is sent again only if the server asks for it. A Client may be used
// concurrently.
type Client struct {
	server string
	token  string
	http   http.Client
}

// Client returns a client with a credential. User agents of these clients begin
// with "rail-cni-controlplane".
func (p *Plane) Client(c Credential) (*Client, error) {
	conf := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	conf.RootCAs.AddCert(p.authority().cert)
	if len(c.Certificate) > 0 {
		pair, err := tls.X509KeyPair(c.Certificate, c.Key)
		if err != nil {
			return nil, err
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	// No proxy, even if the environment names one: the server is on loopback.
	return &Client{
		server: p.server, token: c.Token,
		http: http.Client{Transport: &http.Transport{TLSClientConfig: conf, MaxIdleConnsPerHost: 16}, Timeout: 30 * time.Second},
	}, nil
}

// maxTries bounds how often a request is sent if the server asks for another
// try: once and ten more times, as in client-go.
const maxTries = 11

// Do sends one request and returns the status code and the body of the answer,
// also of a refusal. Body may be nil, []byte (sent as it is), or a value for
// encoding/json; contentType is that of the body, "" for [JSON]. An error means
// that there was no complete answer.
//
// A server that has just started answers some requests with Retry-After while it
// fills its caches. Do tries these again, as all Kubernetes clients do.
func (c *Client) Do(ctx context.Context, method, path, contentType string, body any) (code int, answer []byte, err error) {
	raw, ok := body.([]byte)
	if !ok && body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return 0, nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	for try := 1; ; try++ {
		req, err := c.request(ctx, method, path, contentType, bytes.NewReader(raw))
		if err != nil {
			return 0, nil, err
		}
		code, answer, after, err := c.send(req)
		if err != nil || after == 0 || try == maxTries {
			return code, answer, err
		}
		select {
		case <-ctx.Done():
			return code, answer, nil
		case <-time.After(after):
		}
	}
}

// send returns the answer to one request. after is the delay before the next
// try that the server asks for, 0 if the answer is final.
func (c *Client) send(req *http.Request) (code int, answer []byte, after time.Duration, err error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, 0, err
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, 0, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, err)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError {
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			after = time.Duration(seconds) * time.Second
		}
	}
	return resp.StatusCode, answer, after, nil
}

// request returns a request with the client's credential.
func (c *Client) request(ctx context.Context, method, path, contentType string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, body)
	if err != nil {
		return nil, err
	}
	if contentType == "" {
		contentType = JSON
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", JSON)
	req.Header.Set("User-Agent", "rail-cni-controlplane")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// Get reads an object or, by the path of a collection, a list.
func (c *Client) Get(ctx context.Context, path string) (code int, answer []byte, err error) {
	return c.Do(ctx, http.MethodGet, path, "", nil)
}

// Create posts an object to the path of its collection.
func (c *Client) Create(ctx context.Context, path string, object any) (code int, answer []byte, err error) {
	return c.Do(ctx, http.MethodPost, path, "", object)
}

// Update replaces the object at path.
func (c *Client) Update(ctx context.Context, path string, object any) (code int, answer []byte, err error) {
	return c.Do(ctx, http.MethodPut, path, "", object)
}

// Patch changes the object at path by a patch of the type, for example
// [JSONPatch].
func (c *Client) Patch(ctx context.Context, path, contentType string, patch any) (code int, answer []byte, err error) {
	return c.Do(ctx, http.MethodPatch, path, contentType, patch)
}

// Delete deletes an object or, by the path of a collection, all in it.
func (c *Client) Delete(ctx context.Context, path string) (code int, answer []byte, err error) {
	return c.Do(ctx, http.MethodDelete, path, "", nil)
}

// Watch calls each for the objects of a collection as they change: first for
// the existing ones, as added. kind is ADDED, MODIFIED or DELETED (Kubernetes
// API concepts, "Efficient detection of changes"), object is its new state. It
// ends without an error when each returns false, and with one when the context
// or the server ends it.
func (c *Client) Watch(ctx context.Context, path string, each func(kind string, object json.RawMessage) bool) error {
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	req, err := c.request(ctx, http.MethodGet, path+separator+"watch=1", "", nil)
	if err != nil {
		return err
	}
	endless := c.http
	endless.Timeout = 0
	resp, err := endless.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(resp.Body) // the code is enough
		return fmt.Errorf("watching %s: %d: %s", path, resp.StatusCode, answer)
	}
	for events := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("watching %s: %w", path, err)
		}
		if event.Type == "ERROR" {
			return fmt.Errorf("watching %s: %s", path, event.Object)
		}
		if !each(event.Type, event.Object) {
			return nil
		}
	}
}

// into sends a request and decodes a successful answer into out. Any other
// answer is an error.
func (c *Client) into(ctx context.Context, out any, method, path, contentType string, body any) error {
	code, answer, err := c.Do(ctx, method, path, contentType, body)
	if err == nil && code/100 != 2 {
		err = fmt.Errorf("%s %s: %d: %s", method, path, code, answer)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(answer, out)
	}
	return err
}
