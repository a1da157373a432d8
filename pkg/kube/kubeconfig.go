package kube

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/transport"
)

// kubeconfig is Config of k8s.io/client-go/tools/clientcmd/api/v1.
type kubeconfig struct {
	APIVersion     string         `yaml:"apiVersion"`
	Kind           string         `yaml:"kind"`
	Clusters       []namedCluster `yaml:"clusters"`
	Users          []namedUser    `yaml:"users"`
	Contexts       []namedContext `yaml:"contexts"`
	CurrentContext string         `yaml:"current-context"`
}

type namedCluster struct {
	Name    string      `yaml:"name"`
	Cluster clusterInfo `yaml:"cluster"`
}

type namedUser struct {
	Name string   `yaml:"name"`
	User authInfo `yaml:"user"`
}

type namedContext struct {
	Name    string      `yaml:"name"`
	Context contextInfo `yaml:"context"`
}

type contextInfo struct {
	Cluster   string `yaml:"cluster"`
	User      string `yaml:"user"`
	Namespace string `yaml:"namespace"`
}

type clusterInfo struct {
	Server             string     `yaml:"server"`
	TLSServerName      string     `yaml:"tls-server-name"`
	Insecure           bool       `yaml:"insecure-skip-tls-verify"`
	CAFile             string     `yaml:"certificate-authority"`
	CAData             base64Data `yaml:"certificate-authority-data"`
	ProxyURL           string     `yaml:"proxy-url"`
	DisableCompression bool       `yaml:"disable-compression"`
}

type authInfo struct {
	CertFile          string              `yaml:"client-certificate"`
	CertData          base64Data          `yaml:"client-certificate-data"`
	KeyFile           string              `yaml:"client-key"`
	KeyData           base64Data          `yaml:"client-key-data"`
	Token             string              `yaml:"token"`
	TokenFile         string              `yaml:"tokenFile"`
	Impersonate       string              `yaml:"as"`
	ImpersonateUID    string              `yaml:"as-uid"`
	ImpersonateGroups []string            `yaml:"as-groups"`
	ImpersonateExtra  map[string][]string `yaml:"as-user-extra"`
	Username          string              `yaml:"username"`
	Password          string              `yaml:"password"`
	AuthProvider      *struct{}           `yaml:"auth-provider"`
	Exec              *struct{}           `yaml:"exec"`
}

type base64Data []byte

// UnmarshalYAML decodes base64, as a JSON decoder does for a []byte.
func (d *base64Data) UnmarshalYAML(node *yaml.Node) error {
	var text string
	if err := node.Decode(&text); err != nil {
		return err
	}
	var err error
	*d, err = base64.StdEncoding.DecodeString(text)
	return err
}

func readKubeconfig(path string) (*kubeconfig, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, err
	}
	dropOverridden(&document)
	k := &kubeconfig{}
	if err := document.Decode(k); err != nil {
		return nil, withoutText(err)
	}
	if k.APIVersion != "" && k.APIVersion != "v1" || k.Kind != "" && k.Kind != "Config" {
		return nil, fmt.Errorf("it has apiVersion %q and kind %q, want v1 and Config", k.APIVersion, k.Kind)
	}
	return k, nil
}

// dropOverridden keeps only the last value of a key that has several values, as client-go's
// decoder does. yaml.v3 would return an error.
func dropOverridden(n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		type key struct {
			kind  yaml.Kind
			value string
		}
		seen := map[key]bool{}
		var kept []*yaml.Node
		for i := len(n.Content) - 2; i >= 0; i -= 2 {
			if k := (key{n.Content[i].Kind, n.Content[i].Value}); !seen[k] {
				seen[k] = true
				kept = append(kept, n.Content[i+1], n.Content[i])
			}
		}
		slices.Reverse(kept)
		n.Content = kept
	}
	for _, c := range n.Content {
		dropOverridden(c)
	}
}

// withoutText removes the quoted text of the file from an error of yaml. The author of a
// network chooses the file that is read as a kubeconfig and sees the error, so the error
// must not quote a file that is not a kubeconfig.
func withoutText(err error) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return err
	}
	var errs []error
	for _, e := range wrong.Errors {
		line, _, _ := strings.Cut(e, ": ")
		errs = append(errs, fmt.Errorf("%s: the value has the wrong type", line))
	}
	return errors.Join(errs...)
}

// current returns the current context, and its cluster and user.
func (k *kubeconfig) current() (*contextInfo, *clusterInfo, *authInfo, error) {
	none := func(what, name string) error {
		return fmt.Errorf("%s %q: not among the %ss in the file", what, name, what)
	}
	if k.CurrentContext == "" {
		return nil, nil, nil, errors.New("no current-context")
	}
	contexts, err := byName(k.Contexts, func(n namedContext) (string, contextInfo) { return n.Name, n.Context })
	clusters, clusterErr := byName(k.Clusters, func(n namedCluster) (string, clusterInfo) { return n.Name, n.Cluster })
	users, userErr := byName(k.Users, func(n namedUser) (string, authInfo) { return n.Name, n.User })
	if err := errors.Join(err, clusterErr, userErr); err != nil {
		return nil, nil, nil, err
	}
	context, ok := contexts[k.CurrentContext]
	if !ok {
		return nil, nil, nil, none("context", k.CurrentContext)
	}
	user, ok := users[context.User]
	if !ok {
		return nil, nil, nil, none("user", context.User)
	}
	cluster, ok := clusters[context.Cluster]
	if !ok {
		return nil, nil, nil, none("cluster", context.Cluster)
	}
	return &context, &cluster, &user, nil
}

func byName[N, T any](list []N, split func(N) (string, T)) (map[string]T, error) {
	found := map[string]T{}
	for _, n := range list {
		name, t := split(n)
		if _, ok := found[name]; ok {
			return nil, fmt.Errorf("duplicate name %q", name)
		}
		found[name] = t
	}
	return found, nil
}

// resolve makes relative paths absolute. They are relative to the kubeconfig's directory.
func resolve(path string, c *clusterInfo, u *authInfo) error {
	dir, err := filepath.Abs(filepath.Dir(path))
	for _, ref := range []*string{&c.CAFile, &u.CertFile, &u.KeyFile, &u.TokenFile} {
		if *ref != "" && !filepath.IsAbs(*ref) {
			*ref = filepath.Join(dir, *ref)
		}
	}
	return err
}

func (c *clusterInfo) check() error {
	var errs []error
	if _, err := c.proxy(); err != nil {
		errs = append(errs, fmt.Errorf("proxy-url %q: %w", c.ProxyURL, err))
	}
	if c.CAFile != "" && len(c.CAData) > 0 {
		errs = append(errs, errors.New("certificate-authority-data and certificate-authority are both set"))
	}
	return errors.Join(append(errs, readable("certificate-authority", c.CAFile))...)
}

func (c *clusterInfo) proxy() (*url.URL, error) {
	if c.ProxyURL == "" {
		return nil, nil
	}
	u, err := url.Parse(c.ProxyURL)
	if err == nil && u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "socks5" {
		err = fmt.Errorf("scheme %q is not http, https or socks5", u.Scheme)
	}
	return u, err
}

func readable(what, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return f.Close()
}

// provider returns the key with which the user leaves its credentials to a program, or ""
// if it has no such key.
func (u *authInfo) provider() string {
	switch {
	case u.Exec != nil:
		return "exec"
	case u.AuthProvider != nil:
		return "auth-provider"
	}
	return ""
}

func (u *authInfo) check() error {
	var errs []error
	refuse := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(u.Token != "" && (u.Username != "" || u.Password != ""), "token and username are both set, and only one is allowed")
	if u.CertFile != "" || len(u.CertData) > 0 {
		refuse(u.CertFile != "" && len(u.CertData) > 0, "client-certificate-data and client-certificate are both set")
		refuse(u.KeyFile != "" && len(u.KeyData) > 0, "client-key-data and client-key are both set")
		refuse(u.KeyFile == "" && len(u.KeyData) == 0, "a client certificate is set without client-key-data or client-key")
		errs = append(errs, readable("client-certificate", u.CertFile), readable("client-key", u.KeyFile))
	}
	refuse(u.Impersonate == "" && (u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateExtra) > 0),
		"as-uid, as-groups or as-user-extra is set without as")
	return errors.Join(errs...)
}

// access returns the transport's configuration for the server at base. It
// refuses credentials for a server without TLS.
func access(base *url.URL, c *clusterInfo, u *authInfo) (*transport.Config, error) {
	t := &transport.Config{DisableCompression: c.DisableCompression}
	if proxy, err := c.proxy(); err != nil {
		return nil, err
	} else if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	if u.Impersonate != "" {
		t.Impersonate = transport.ImpersonationConfig{UserName: u.Impersonate, UID: u.ImpersonateUID, Groups: u.ImpersonateGroups, Extra: u.ImpersonateExtra}
	}
	if base.Scheme != "https" {
		return t, nil
	}
	t.TLS = transport.TLSConfig{CAFile: c.CAFile, CAData: c.CAData, Insecure: c.Insecure, ServerName: c.TLSServerName}
	if u.CertFile != "" || len(u.CertData) > 0 {
		t.TLS.CertFile, t.TLS.CertData, t.TLS.KeyFile, t.TLS.KeyData = u.CertFile, u.CertData, u.KeyFile, u.KeyData
	}
	t.Username, t.Password = u.Username, u.Password
	t.BearerToken, t.BearerTokenFile = u.Token, u.TokenFile
	if u.Token == "" && u.TokenFile != "" {
		token, err := os.ReadFile(u.TokenFile)
		if err != nil {
			return nil, err
		}
		t.BearerToken = string(token)
	}
	return t, nil
}

// serverURL parses a URL, or a host and port, for which the scheme is http. Source:
// client-go, rest.DefaultServerURL.
func serverURL(server string) (*url.URL, error) {
	base, err := url.Parse(server)
	if err != nil || base.Scheme == "" || base.Host == "" {
		if base, err = url.Parse("http://" + server); err != nil {
			return nil, err
		}
		if base.Path != "" && base.Path != "/" {
			return nil, fmt.Errorf("%q is neither a URL nor host:port", server)
		}
	}
	if len(base.Path) > 1 {
		base.RawQuery, base.Fragment = "", ""
	}
	return base, nil
}
