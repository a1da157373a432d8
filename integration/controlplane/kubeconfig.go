package controlplane

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// CertificateFor makes a client certificate of a user with its groups, for
// example "system:node:n1" of "system:nodes".
func (p *Plane) CertificateFor(user string, groups ...string) (c Credential, err error) {
	c.Certificate, c.Key, err = p.authority().client(user, groups...)
	return c, err
}

// ServiceAccount returns a token of a service account, valid for a day, from
// the API's TokenRequest as a kubelet requests one. It makes the account if
// there is none. The token ends with the account: if that is deleted the server
// answers 401.
func (p *Plane) ServiceAccount(ctx context.Context, namespace, name string) (Credential, error) {
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	account := map[string]any{"metadata": map[string]any{"name": name}}
	code, answer, err := p.Admin().Create(ctx, accounts, account)
	if err != nil {
		return Credential{}, err
	}
	if code != http.StatusCreated && code != http.StatusConflict {
		return Credential{}, fmt.Errorf("creating service account %s/%s: %d: %s", namespace, name, code, answer)
	}
	var request struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	ask := map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": 86400},
	}
	err = p.Admin().into(ctx, &request, http.MethodPost, accounts+"/"+name+"/token", JSON, ask)
	return Credential{Token: request.Status.Token}, err
}

// Form is one of the shapes of users' kubeconfigs. The zero Form is that of
// whereabouts' installer (script/install-cni.sh there) except for the
// namespace: all inline, a token if the credential has one.
type Form struct {
	Path      string // of the file; "" = a new one in the plane's directory
	Namespace string // of the context; "" = the context names none
	Server    string // "" = the plane's
	CAFile    bool   // the CA as a path, in place of data
	// CredentialFile: tokenFile, client-certificate and client-key as paths, in
	// place of data. The files lie beside the kubeconfig, under its name and
	// ".token", ".crt", ".key".
	CredentialFile bool
	Relative       bool // paths are relative to the kubeconfig's directory
	SkipVerify     bool // no CA: insecure-skip-tls-verify
}

// Kubeconfig writes a kubeconfig with a credential, readable by its owner only,
// and returns its path.
func (p *Plane) Kubeconfig(c Credential, f Form) (string, error) {
	if f.Path == "" {
		file, err := os.CreateTemp(p.dir, "*.kubeconfig")
		if err != nil {
			return "", err
		}
		f.Path = file.Name()
		_ = file.Close() // it is written below
	}
	if f.Server == "" {
		f.Server = p.server
	}
	files := map[string][]byte{}
	// entry returns a line with the data, or with the path of a file that
	// contains them.
	entry := func(asFile bool, key, suffix string, data []byte) string {
		if !asFile {
			return fmt.Sprintf("    %s-data: %s\n", key, base64.StdEncoding.EncodeToString(data))
		}
		path := f.Path + suffix
		files[path] = data
		if f.Relative {
			path = filepath.Base(path)
		}
		return fmt.Sprintf("    %s: %s\n", key, path)
	}

	var b bytes.Buffer
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    server: %s\n", f.Server)
	if f.SkipVerify {
		b.WriteString("    insecure-skip-tls-verify: true\n")
	} else {
		b.WriteString(entry(f.CAFile, "certificate-authority", ".ca", p.CA()))
	}
	b.WriteString("users:\n- name: whereabouts\n  user:\n")
	switch {
	case c.Token != "" && f.CredentialFile:
		b.WriteString(entry(true, "tokenFile", ".token", []byte(c.Token)))
	case c.Token != "":
		fmt.Fprintf(&b, "    token: %q\n", c.Token)
	default:
		b.WriteString(entry(f.CredentialFile, "client-certificate", ".crt", c.Certificate))
		b.WriteString(entry(f.CredentialFile, "client-key", ".key", c.Key))
	}
	b.WriteString("contexts:\n- name: whereabouts-context\n  context:\n    cluster: local\n    user: whereabouts\n")
	if f.Namespace != "" {
		fmt.Fprintf(&b, "    namespace: %s\n", f.Namespace)
	}
	b.WriteString("current-context: whereabouts-context\n")
	files[f.Path] = b.Bytes()
	return f.Path, writeFiles(files)
}

// AdminKubeconfig returns the path of a kubeconfig of a cluster administrator:
// a certificate, all inline, no namespace.
func (p *Plane) AdminKubeconfig() string { return filepath.Join(p.dir, "admin.kubeconfig") }
