package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
)

// installer runs whereabouts' own installer in the same way as its container. The root directory
// has the scripts and the plugin of the image, the files of the service account and, below /host,
// the directories of the node.
const installer = `
mount --make-rprivate /
for dir in usr bin sbin lib lib64 etc; do
	if [ -L /$dir ]; then cp -P /$dir $ROOT/$dir; elif [ -d /$dir ]; then mkdir -p $ROOT/$dir; mount --rbind /$dir $ROOT/$dir; fi
done
mkdir -p $ROOT/host$CONF $ROOT/host/opt/cni/bin $ROOT/dev
mount --bind $CONF $ROOT/host$CONF
mount --bind $BIN $ROOT/host/opt/cni/bin
mount --rbind /dev $ROOT/dev
touch $ROOT/whereabouts
mount --bind $PEER $ROOT/whereabouts
CNI_CONF_DIR=/host$CONF exec chroot $ROOT /bin/bash -c "$COMMAND"`

// theirs is a node on which whereabouts was installed by its own manifests.
type theirs struct {
	*lab
	plane     *controlplane.Plane
	conf, bin string
	token     string // of the installer's pod
}

func (w *theirs) kubectl(args ...string) string {
	w.t.Helper()
	cmd := exec.Command(testnet.Tool(w.t, "controlplane/kubectl", "cluster-binaries"), append([]string{"--kubeconfig", w.plane.AdminKubeconfig()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// post creates an object, and decodes the answer.
func (w *theirs) post(path string, object, answer any) {
	w.t.Helper()
	code, text, err := w.plane.Admin().Create(w.t.Context(), path, object)
	if err != nil || code != http.StatusCreated {
		w.t.Fatalf("%s: %d, %v: %s", path, code, err, text)
	}
	if answer != nil {
		need.NoError(w.t, json.Unmarshal(text, answer))
	}
}

// tokenFor returns a token of a service account that is bound to an object.
func (w *theirs) tokenFor(account, kind, name string) string {
	w.t.Helper()
	var answer struct{ Status struct{ Token string } }
	w.post("/api/v1/namespaces/kube-system/serviceaccounts/"+account+"/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": 3607, "boundObjectRef": map[string]any{"apiVersion": "v1", "kind": kind, "name": name}},
	}, &answer)
	return answer.Status.Token
}

// newTheirs applies whereabouts' manifests, and does what the kubelet does for their pod on node1.
func newTheirs(t *testing.T) *theirs {
	t.Helper()
	need.Root(t)
	w := &theirs{
		lab:   &lab{t: t, state: filepath.Join(scratch.Dir(t), "state")},
		plane: controlplane.Start(t, controlplane.Options{}), conf: t.TempDir(), bin: t.TempDir(),
	}
	list := exec.Command("go", "list", "-C", "../../integration/peers", "-m", "-f", "{{.Dir}}", "github.com/k8snetworkplumbingwg/whereabouts")
	module, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list, err)
	}
	source := strings.TrimSpace(string(module))
	w.kubectl("apply", "--filename", filepath.Join(source, "doc/crds/daemonset-install.yaml"))
	w.post("/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "node1"}}, nil)

	var set struct {
		Spec struct {
			Template struct {
				Metadata, Spec map[string]any
			}
		}
	}
	need.NoError(t, json.Unmarshal([]byte(w.kubectl("--namespace", "kube-system", "get", "daemonset", "whereabouts", "--output", "json")), &set))
	pod := set.Spec.Template
	pod.Metadata["name"], pod.Spec["nodeName"] = "whereabouts-node1", "node1"
	var made struct {
		Spec struct{ Containers []struct{ Args []string } }
	}
	w.post("/api/v1/namespaces/kube-system/pods", map[string]any{"metadata": pod.Metadata, "spec": pod.Spec}, &made)
	command, _, _ := strings.Cut(made.Spec.Containers[0].Args[1], "\n") // the rest renews the token, and frees addresses
	w.token = w.tokenFor("whereabouts", "Pod", "whereabouts-node1")

	root := t.TempDir()
	account := filepath.Join(root, "var/run/secrets/kubernetes.io/serviceaccount")
	need.NoError(t, os.MkdirAll(account, 0o755))
	for path, text := range map[string]string{filepath.Join(account, "token"): w.token, filepath.Join(account, "ca.crt"): string(w.plane.CA())} {
		need.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, name := range []string{"lib.sh", "install-cni.sh"} {
		text, err := os.ReadFile(filepath.Join(source, "script", name))
		need.NoError(t, err)
		need.NoError(t, os.WriteFile(filepath.Join(root, name), text, 0o755))
	}
	host, port, _ := strings.Cut(strings.TrimPrefix(w.plane.Server(), "https://"), ":")
	install := exec.Command("unshare", "--mount", "sh", "-ec", installer)
	install.Env = append(os.Environ(), "ROOT="+root, "CONF="+w.conf, "BIN="+w.bin,
		"PEER="+filepath.Join(testnet.Peers(t), "kubernetes/whereabouts"), "COMMAND="+command,
		"KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port, "NODENAME=node1", "WHEREABOUTS_NAMESPACE=kube-system")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("the installer: %v\n%s", err, out)
	}
	return w
}

// add runs the installed plugin for a new pod. It returns what the plugin printed.
func (w *theirs) add(pod string) (said string, err error) {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(w.bin, "whereabouts"))
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c-" + pod, "CNI_IFNAME=net1", "CNI_NETNS=/nonexistent/netns", "CNI_PATH=/nonexistent", testnet.OpenNodeFileEnv,
		"CNI_ARGS=IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod,
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "stateDir": %q,
		"ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "configuration_path": %q}}`,
		w.state, filepath.Join(w.conf, "whereabouts.d/whereabouts.conf")))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *theirs) wantAddress(pod, address string) {
	w.t.Helper()
	if said, err := w.add(pod); err != nil || !strings.Contains(said, `"`+address+`/24"`) {
		w.t.Errorf("ADD of %s: %v: %s", pod, err, said)
	}
}

// TestNodeThatIsSwitchedOverFromWhereabouts starts with whereabouts v0.9.4, which its own manifests
// and scripts have installed. The token in its kubeconfig is valid as long as the pod of its
// DaemonSet exists.
func TestNodeThatIsSwitchedOverFromWhereabouts(t *testing.T) {
	w := newTheirs(t)
	w.wantAddress("before", "10.0.0.1") // by real whereabouts

	const base = "../../deployments/kustomize/base/"
	w.kubectl("apply", "--filename", base+"plugin.yaml", "--filename", base+"agent.yaml", "--filename", base+"admission.yaml")
	kubeconfig, err := w.plane.Kubeconfig(controlplane.Credential{Token: w.tokenFor("rail-cni-agent", "Node", "node1")}, controlplane.Form{})
	need.NoError(t, err)
	args := []string{
		"--install", "--own", testnet.Bin(t), "--cni-bin", w.bin, "--record", filepath.Join(t.TempDir(), "record"),
		"--cni-conf", w.conf, "--kubeconfig", kubeconfig, "--node", "node1",
	}
	path := filepath.Join(w.conf, "whereabouts.d/whereabouts.kubeconfig")
	used := func(a *running) local.Kubeconfig {
		if k := a.status().Kubeconfig; k != nil {
			return *k
		}
		return local.Kubeconfig{}
	}
	a := w.start(args...)
	await(t, "the agent to ask", time.Minute, func() bool { return used(a) == local.Kubeconfig{Path: path, Accepted: true} })
	theirs, err := os.ReadFile(path)
	need.NoError(t, err)
	w.wantAddress("switched", "10.0.0.2") // by ours, with their kubeconfig
	a.end(syscall.SIGTERM)

	// The DaemonSet is deleted, and with it its pod and the token.
	w.kubectl("--namespace", "kube-system", "delete", "daemonset", "whereabouts")
	w.kubectl("--namespace", "kube-system", "delete", "pod", "whereabouts-node1", "--force", "--grace-period=0")
	client, err := w.plane.Client(controlplane.Credential{Token: w.token})
	need.NoError(t, err)
	await(t, "the token's end", time.Minute, func() bool {
		code, _, err := client.Get(t.Context(), "/version")
		return err == nil && code == http.StatusUnauthorized
	})
	if said, err := w.add("trapped"); err == nil || !strings.Contains(said, "401") {
		t.Errorf("ADD with a dead token: %v: %s", err, said)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(theirs) {
		t.Fatalf("their kubeconfig is another already, %v: %s", err, now)
	}

	a = w.launch(args...)
	await(t, "the agent to be unready because of it", time.Minute, func() bool {
		code, text := a.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "refuses the kubeconfig of the plugin")
	})
	await(t, "the agent to replace it", 3*time.Minute, func() bool { return len(a.said("reason=KubeconfigReplaced")) == 1 })
	await(t, "the agent to be ready", time.Minute, func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
	w.wantAddress("saved", "10.0.0.3")
	if k := used(a); k != (local.Kubeconfig{Path: path, Owned: true, Accepted: true}) {
		t.Errorf("the agent says %+v", k)
	}
	if value, lines := a.metric("rail_cni_kubeconfig_accepted", `path="`+path+`"`, `owned="true"`); value != 1 || lines != 1 {
		t.Errorf("rail_cni_kubeconfig_accepted is %v on %d lines", value, lines)
	}
	await(t, "its Event", time.Minute, func() bool {
		return strings.Contains(w.kubectl("get", "events", "--output", "jsonpath={.items[*].reason}"), "KubeconfigReplaced")
	})
}
