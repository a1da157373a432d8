package whereabouts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// plane is the control plane of all tests; each has namespaces of its own.
var plane *controlplane.Plane

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := scratch.MkdirTemp("whereabouts")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer scratch.Remove(dir)
		plane, err = controlplane.New(context.Background(), dir, controlplane.Options{Audit: true})
		if err != nil {
			return need.Main(err)
		}
		defer plane.Close()
		return m.Run()
	}())
}

func ours(t testing.TB) string { return filepath.Join(testnet.Bin(t), "whereabouts") }

func theirs(t testing.TB) string {
	t.Helper()
	path := filepath.Join(testnet.Peers(t), "kubernetes", "whereabouts")
	need.NoError(t, need.Built(path, "peers"))
	return path
}

const group = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/"

// The custom resources.
const (
	pools        = "ippools"
	reservations = "overlappingrangeipreservations"
	slicePools   = "nodeslicepools"
)

var namespaces atomic.Int64

// newNamespace makes a namespace of the API.
func newNamespace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprint("space-", namespaces.Add(1))
	mustCreate(t, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": name}})
	return name
}

func mustCreate(t testing.TB, path string, object any) {
	t.Helper()
	code, answer, err := plane.Admin().Create(t.Context(), path, object)
	if err != nil || code != http.StatusCreated {
		t.Fatalf("POST %s: %d %s %v", path, code, answer, err)
	}
}

// node is a node's files, with the credentials for one namespace: "kubeconfig",
// "flat" (a flat file without keys) and the state of our plugin.
type node struct{ dir, namespace string }

func newNode(t testing.TB, namespace string) *node {
	t.Helper()
	n := &node{dir: scratch.Dir(t), namespace: namespace}
	c, err := plane.CertificateFor("node-of-"+namespace, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plane.Kubeconfig(c, controlplane.Form{Path: filepath.Join(n.dir, "kubeconfig"), Namespace: namespace}); err != nil {
		t.Fatal(err)
	}
	n.write(t, "flat", "{}")
	return n
}

func (n *node) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// here is the placeholder in configs for the node's directory.
const here = "DIR"

// config makes a network config of an ipam object and further keys. It adds the
// keys that both plugins need unless the object has them; null removes a key.
func (n *node) config(t testing.TB, version, ipam, keys string) string {
	t.Helper()
	conf := map[string]json.RawMessage{}
	for _, text := range []string{
		`{"type":"whereabouts","kubernetes":{"kubeconfig":"DIR/kubeconfig"},"configuration_path":"DIR/flat"}`, ipam,
	} {
		if err := json.Unmarshal([]byte(text), &conf); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	for key, value := range conf {
		if string(value) == "null" {
			delete(conf, key)
		}
	}
	object, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	if keys != "" {
		keys = "," + keys
	}
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"macvlan","stateDir":"DIR/state","ipam":%s%s}`, version, object, keys)
	return strings.ReplaceAll(text, here, n.dir)
}

// call is one execution of a plugin.
type call struct {
	binary, verb, id, ifname, args, stdin string
	node                                  string // NODENAME
	netns                                 string // "" is one that does not exist
}

func (c call) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.binary)
	cmd.Env = []string{
		"CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.id, "CNI_IFNAME=" + c.ifname, "CNI_ARGS=" + c.args,
		"CNI_NETNS=" + cmp.Or(c.netns, "/nonexistent/netns"), "CNI_PATH=/nonexistent", "GOTRACEBACK=none",
		testnet.OpenNodeFileEnv,
		"NODENAME=" + c.node,
	}
	cmd.Stdin = strings.NewReader(c.stdin)
	return cmd
}

// patience is longer than either plugin's own.
const patience = 3 * time.Minute

// run returns the plugin's output. The error of a failed plugin is its CNI
// error, or, without one, its exit code and stderr.
func (c call) run() (string, error) {
	out, _, err := c.runLogged()
	return out, err
}

// runLogged also returns the plugin's stderr.
func (c call) runLogged() (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.command(ctx)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err = cmd.Run(); err == nil {
		return out.String(), errs.String(), nil
	}
	said := &types.Error{}
	if json.Unmarshal(out.Bytes(), said) == nil && said.Code != 0 {
		return "", errs.String(), said
	}
	return "", errs.String(), fmt.Errorf("%w: %s%s", err, out.Bytes(), errs.Bytes())
}

// exitCode returns the plugin's exit code from run's error: a plugin that
// printed an error ends with 1.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return 1
}

// identity returns the container ID and the CNI_ARGS of a pod.
func identity(pod int) (id, args string) {
	return fmt.Sprintf("%064x", pod), fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=apps;K8S_POD_NAME=pod-%d", pod)
}

// addresses returns the addresses of a result, with their prefix lengths.
func addresses(result string) ([]string, error) {
	var r struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		return nil, fmt.Errorf("%s: %w", result, err)
	}
	var all []string
	for _, ip := range r.IPs {
		all = append(all, ip.Address)
	}
	return all, nil
}

// object is a custom resource, with the fields that plugins write.
type object struct {
	Metadata struct {
		Name            string            `json:"name,omitempty"`
		ResourceVersion string            `json:"resourceVersion,omitempty"`
		Labels          map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec   map[string]any `json:"spec,omitempty"`
	Status map[string]any `json:"status,omitempty"`
}

// list returns a namespace's objects of a kind.
func list(ctx context.Context, namespace, plural string) ([]object, error) {
	code, answer, err := plane.Admin().Get(ctx, group+namespace+"/"+plural)
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("LIST %s: %d %s", plural, code, answer)
	}
	var all struct{ Items []object }
	return all.Items, json.Unmarshal(answer, &all)
}

// holders returns the entries of all pools of a namespace as "pool key", and its
// reservations by name.
func holders(t testing.TB, namespace string) (entries, reserved []string) {
	t.Helper()
	found, err := list(t.Context(), namespace, pools)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range found {
		allocations, _ := o.Spec["allocations"].(map[string]any)
		for key, e := range allocations {
			entries = append(entries, fmt.Sprint(o.Metadata.Name, " ", key, " ", e))
		}
	}
	if found, err = list(t.Context(), namespace, reservations); err != nil {
		t.Fatal(err)
	}
	for _, o := range found {
		reserved = append(reserved, fmt.Sprint(o.Metadata.Name, " ", o.Spec))
	}
	return entries, reserved
}

func wantEmpty(t testing.TB, namespace string) {
	t.Helper()
	entries, reserved := holders(t, namespace)
	if len(entries)+len(reserved) > 0 {
		t.Errorf("left over: entries %q, reservations %q", entries, reserved)
	}
}

// quantile returns the q-quantile of durations.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(q*float64(len(sorted)-1))].Round(time.Millisecond)
}
