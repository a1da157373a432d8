package credential

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/rail-cni/rail-cni/pkg/install"
)

// Dir is the name of the directory that whereabouts' own installer makes below the runtime's
// configuration directory (whereabouts v0.9.4, script/lib.sh).
const Dir = "whereabouts.d"

// These are the names of the files. whereabouts' own installer uses the same names.
const (
	kubeconfigName = "whereabouts.kubeconfig"
	flatFileName   = "whereabouts.conf"
	nodeNameName   = "nodename"
)

const (
	secret   = fs.FileMode(0o600)
	readable = fs.FileMode(0o644)
)

// path returns the path of the file with this name.
func (k *Keeper) path(name string) string { return filepath.Join(k.ConfDir, Dir, name) }

// write writes the files that are missing or differ.
func (k *Keeper) write(ctx context.Context, ca []byte) error {
	server := cmp.Or(k.Server, k.Client.Server())
	namespace := cmp.Or(k.PoolNamespace, k.Namespace)
	kubeconfig, flat := k.path(kubeconfigName), &bytes.Buffer{}
	enc := json.NewEncoder(flat)
	enc.SetIndent("", "  ")
	if err := enc.Encode(map[string]any{
		"datastore": "kubernetes", "configuration_path": filepath.Join(k.ConfDir, Dir), "kubernetes": map[string]any{"kubeconfig": kubeconfig},
	}); err != nil {
		return err
	}
	for _, f := range []install.File{
		{Path: kubeconfig, Content: kubeconfigText(server, ca, k.token, namespace), Mode: secret},
		{Path: k.path(nodeNameName), Content: []byte(k.Node + "\n"), Mode: readable},
		{Path: k.path(flatFileName), Content: flat.Bytes(), Mode: secret}, // the last, because it names the other files
	} {
		f.Yield = !k.Replace && (!k.taking || f.Path != kubeconfig)
		outcome, err := k.Put(ctx, f)
		if err != nil {
			return err
		}
		if outcome != k.outcomes[f.Path] && outcome != install.Same && outcome != "" {
			k.Log.Info("whereabouts' file was written or kept", "path", f.Path, "outcome", outcome)
		}
		k.outcomes[f.Path] = outcome
	}
	return nil
}

// kubeconfigText returns the text of the kubeconfig. It uses the same names of clusters and users
// as whereabouts' installer, but nothing depends on these names.
func kubeconfigText(server string, ca []byte, token, namespace string) []byte {
	trust := ""
	if len(ca) > 0 {
		trust = "\n    certificate-authority-data: " + base64.StdEncoding.EncodeToString(ca)
	}
	return fmt.Appendf(nil, `# Written by rail-agent, which renews the token.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: %q%s
users:
- name: whereabouts
  user:
    token: %q
contexts:
- name: whereabouts-context
  context:
    cluster: local
    user: whereabouts
    namespace: %q
current-context: whereabouts-context
`, server, trust, token, namespace)
}
