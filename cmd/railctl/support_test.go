package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// bundleFiles returns the files of a bundle, without its directory.
func bundleFiles(t *testing.T, path string) map[string]string {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return testnet.Archive(t, data)
}

// namesOfFiles returns the names of files in their order.
func namesOfFiles(files map[string]string) (names []string) {
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// lacks fails the test if a file has a text.
func lacks(t *testing.T, files map[string]string, secret string) {
	t.Helper()
	for name, text := range files {
		if strings.Contains(text, secret) {
			t.Errorf("%s has %q", name, secret)
		}
	}
}

func TestSupportBundleOfThisNode(t *testing.T) {
	l := newLab(t)
	l.lend()
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	out, errOut, code := l.railctl("support-bundle", "--local", "-o", file)
	if code != 0 || errOut != "" || !strings.Contains(out, file+" is written") {
		t.Fatalf("exit code %d: %s%s", code, out, errOut)
	}
	files := bundleFiles(t, file)
	want := []string{"README.txt", "facts.json", "findings.json", "findings.txt", "node/nics.json", "node/show.json", "node/version.json", "report.html"}
	if have := namesOfFiles(files); !slices.Equal(slices.DeleteFunc(have, func(n string) bool { return strings.HasPrefix(n, "logs/") || n == "node/node.yaml" }), want) {
		t.Errorf("files: %q", have)
	}
	contains(t, "show.json", files["node/show.json"], "default/web-0")
	contains(t, "README.txt", files["README.txt"], "everything could be read", "the attachments in the node's ledger")
	facts := filepath.Join(t.TempDir(), "facts.json")
	if err := os.WriteFile(facts, []byte(files["facts.json"]), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errOut, _ := plainRun("doctor", "--facts", facts); errOut != "" || !strings.Contains(out, " ok") {
		t.Errorf("the facts of the bundle: %s%s", out, errOut)
	}
	for _, c := range []struct{ args, want string }{
		{"--local --node a", "exclude each other"}, {"--node a", "--node needs a cluster"}, {"--since 0s", "--since"}, {"-o /none/x", "/none/x"},
	} {
		if _, errOut, code := l.railctl(append([]string{"support-bundle"}, strings.Fields(c.args)...)...); code != 1 || !strings.Contains(errOut, c.want) {
			t.Errorf("%s: exit code %d, %s", c.args, code, errOut)
		}
	}
}

// fakeCluster is an API server that has lists of objects, by the path of the request, and pods that
// run a function instead of a program. It implements the protocols for lists, logs and exec.
type fakeCluster struct {
	objects map[string][]any
	run     func(pod string, command []string) (out, errOut string, code int)
	log     func(pod, container string, query url.Values) string
	forbids bool // everything
}

// ServeHTTP implements http.Handler.
func (f *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // "", api, v1, namespaces, NAMESPACE, pods, POD, exec
	switch query := r.URL.Query(); {
	case f.forbids, query.Get("sinceSeconds") == "1080" && query.Get("tailLines") != "5000":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","status":"Failure","reason":"Forbidden","message":"it is forbidden","code":403}`)
	case strings.HasSuffix(r.URL.Path, "/log"):
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, f.log(parts[6], query.Get("container"), query))
	case strings.HasSuffix(r.URL.Path, "/exec"):
		_ = controlplane.ServeExec(w, r, func(command []string) (out, errOut, status string) { // the client is told
			out, errOut, code := f.run(parts[6], command)
			status = controlplane.ExecSuccess
			if code != 0 {
				status = fmt.Sprintf(`{"status":"Failure","message":"command terminated with exit code %[1]d","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"%[1]d"}]}}`, code)
			}
			return out, errOut, status
		})
	default:
		items := f.objects[r.URL.Path]
		if items == nil {
			items = []any{}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "1"}, "items": items})
	}
}

// newFakeCluster starts a cluster of two nodes, each with a pod of rail-agent. It puts a secret
// into every place where an object, a log or an answer could have one. It returns a kubeconfig of
// the cluster, and the kubeconfig of a user who has no rights.
func newFakeCluster(t *testing.T) (kubeconfig, nobody string) {
	t.Helper()
	facts, err := json.Marshal(&fact.Facts{
		Schema: fact.Schema, NICs: &fact.NICs{List: fact.Known([]fact.NIC{{Name: "ens1"}}, "test")},
		Configs: &fact.Configs{Files: fact.Known([]fact.Config{{Kind: fact.NodeFile, Name: "/etc/rail-cni/node.yaml", Text: "rails: auto # password: Planted"}}, "test")},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeCluster{
		run: func(_ string, command []string) (out, errOut string, code int) {
			switch text := strings.Join(command, " "); {
			case text == "/rail-agent facts --state-dir=/run/x":
				return string(facts), "", 0
			case strings.Contains(text, "killed"):
				return "a part\n", "its warning\n", 137
			case strings.Contains(text, "mute"):
				return "", "", 1
			case strings.Contains(text, "gone"):
				return "what it printed\n", "why \x1b[2J\n", 2
			case strings.HasSuffix(text, "json"):
				return `{"ran": "` + text + `", "apiKey": "Planted"}`, "", 0
			default:
				return "ran " + text + "\n", "", 0
			}
		},
		log: func(pod, container string, query url.Values) string {
			if since := query.Get("sinceSeconds"); since == "1080" || since == "1020" && query.Get("tailLines") != "78" { // a long one, of which the end is cut
				return strings.Repeat("long\n", 4<<20)[:4<<20]
			}
			return "the log of " + pod + " " + container + " " + query.Encode() + " token=Planted\n"
		},
	}
	labels := map[string]any{"app.kubernetes.io/name": "rail-cni", "app.kubernetes.io/component": "agent"}
	container := map[string]any{
		"name": "rail-agent", "image": "i", "args": []string{"run", "--state-dir=/run/x"}, "env": []map[string]any{{"name": "API_TOKEN", "value": "Planted"}},
	}
	event := func(component string) any {
		return map[string]any{
			"metadata": map[string]any{"name": component}, "involvedObject": map[string]any{"kind": "Node", "name": "gpu-1"}, "reason": "R", "message": "event of " + component,
			"source": map[string]any{"component": component, "host": "gpu-1"}, "lastTimestamp": time.Now().UTC().Format(time.RFC3339), "eventTime": nil,
		}
	}
	const pods, nodes = "/api/v1/namespaces/kube-system/pods", "/api/v1/nodes"
	f.objects = map[string][]any{
		"/apis/apps/v1/namespaces/kube-system/daemonsets": {map[string]any{
			"metadata": map[string]any{"name": "rail-agent", "labels": labels, "annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "Planted"}},
			"spec":     map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{container}}}},
		}},
		"/apis/k8s.cni.cncf.io/v1/network-attachment-definitions": {map[string]any{
			"metadata": map[string]any{"namespace": "default", "name": "roce-net1"}, "spec": map[string]any{"config": `{"cniVersion": "1.1.0", "name": "roce-net1", "type": "host-device"}`},
		}},
		"/api/v1/events":  {event("rail-agent"), event("scheduler")},
		"/api/v1/secrets": {map[string]any{"metadata": map[string]any{"name": "s"}, "data": map[string]any{"x": "Planted"}}},
	}
	for _, name := range []string{"gpu-1", "gpu-2"} {
		f.objects[nodes] = append(f.objects[nodes], map[string]any{"metadata": map[string]any{"name": name}})
		f.objects[pods] = append(f.objects[pods], map[string]any{
			"metadata": map[string]any{"namespace": "kube-system", "name": "rail-agent-" + name, "labels": labels},
			"spec":     map[string]any{"nodeName": name, "containers": []any{container}},
			"status": map[string]any{
				"phase": "Running", "containerStatuses": []map[string]any{{"name": "rail-agent", "restartCount": 1}},
			},
		})
	}
	dir := t.TempDir()
	for path, of := range map[string]*fakeCluster{"kubeconfig": f, "nobody": {forbids: true}} {
		server := httptest.NewServer(of)
		t.Cleanup(server.Close)
		kubeconfigOf(t, filepath.Join(dir, path), "fake", portOf(server.Listener), "current-context: fake")
	}
	return filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "nobody")
}

func TestCommandsReachTheNodesOfACluster(t *testing.T) {
	path, nobody := newFakeCluster(t)
	kubeconfig := []string{"--kubeconfig", path}

	t.Run("a command on a node", func(t *testing.T) {
		for _, c := range []struct{ args, want string }{
			{"show --node gpu-2 -o yaml", "ran /railctl --state-dir=/run/x show --output=yaml\n"},
			{"pod trainer -n a --node gpu-1", "ran /railctl --state-dir=/run/x pod --namespace=a -- trainer\n"},
			{"doctor --node gpu-1 --only A,B", ""},
			{"doctor --node gpu-1 --only NIC-MTU,NIC-CARRIER -v", "ran /railctl --state-dir=/run/x doctor --only=NIC-MTU --only=NIC-CARRIER --verbose=true\n"},
			{"show --node gpu-1 --state-dir /run/y", "ran /railctl --state-dir=/run/x show --state-dir=/run/y\n"},
			{"topology --node gpu-1 --svg=-", "ran /railctl --state-dir=/run/x topology --svg=-\n"},
		} {
			out, errOut, code := plainRun(append(strings.Fields(c.args), kubeconfig...)...)
			if c.want == "" { // the node decides
				c.want = "ran /railctl --state-dir=/run/x doctor --only=A --only=B\n"
			}
			if code != 0 || errOut != "" || out != c.want {
				t.Errorf("%s: exit code %d, %q, stderr %q", c.args, code, out, errOut)
			}
		}
		if out, errOut, code := plainRun(append([]string{"pod", "default/gone", "--node", "gpu-1"}, kubeconfig...)...); code != 2 || out != "what it printed\n" || errOut != `why \x1b[2J`+"\n" {
			t.Errorf("exit code %d, %q, %q", code, out, errOut)
		}
		for name, want := range map[string]string{"killed": "its warning\nrailctl: /railctl --state-dir=/run/x pod -- killed in pod", "mute": "railctl: /railctl --state-dir=/run/x pod -- mute in pod"} {
			if _, errOut, code := plainRun(append([]string{"pod", name, "--node", "gpu-1"}, kubeconfig...)...); code == 0 || !strings.HasPrefix(errOut, want) {
				t.Errorf("%s: exit code %d, %q", name, code, errOut)
			}
		}
		for args, want := range map[string]string{
			"doctor --node gpu-1 --facts -": "--facts FILE exclude",
			"show --node gpu-3":             "these have one: gpu-1, gpu-2", "show --node gpu-1 --agent-namespace default": "no pods with the labels",
			"topology --node gpu-1 --svg=x": "would be on the node", "topology --node gpu-1 --svg x": "would be on the node", "doctor --node gpu-1 --facts x": "--facts FILE exclude",
		} {
			if out, errOut, code := plainRun(append(strings.Fields(args), kubeconfig...)...); code == 0 || out != "" || !strings.Contains(errOut, want) {
				t.Errorf("%s: exit code %d, %q, stderr %q", args, code, out, errOut)
			}
		}
	})
	t.Run("a bundle", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "bundle.tar.gz")
		out, errOut, code := plainRun(append([]string{"support-bundle", "-o", file}, kubeconfig...)...)
		if code != 0 || errOut != "" || !strings.Contains(out, "is written") {
			t.Fatalf("exit code %d: %s%s", code, out, errOut)
		}
		files := bundleFiles(t, file)
		lacks(t, files, "Planted")
		for name, want := range map[string]string{
			"README.txt": "everything could be read", "facts.json": "rail-cni.io/facts/v1", "findings.txt": "2 nodes", "report.html": "gpu-2",
			"logs/rail-agent-gpu-1_rail-agent.log": "the log of rail-agent-gpu-1", "logs/rail-agent-gpu-2_rail-agent.previous.log": "previous=true",
			"nodes/gpu-1/node.yaml": "rails: auto", "nodes/gpu-2/show.json": "show -o json", "objects/daemonsets.json": `"name": "API_TOKEN"`, "objects/deployments.json": "[]",
			"objects/network-attachment-definitions.json": `\"host-device\"`, "objects/events.json": "event of rail-agent", "objects/nodes.json": "gpu-2", "objects/pods.json": "rail-agent-gpu-2",
		} {
			contains(t, name, files[name], want)
		}
		if strings.Contains(files["objects/events.json"], "event of scheduler") {
			t.Error("Events of others are inside")
		}
		contains(t, "README.txt", files["README.txt"], "objects/daemonsets.json: 1", "logs/rail-agent-gpu-1_rail-agent.log: 1")
	})
	t.Run("a bundle of one node, and one that is missing", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "bundle.tar.gz")
		_, errOut, code := plainRun(append([]string{"support-bundle", "-o", file, "--node", "gpu-2,gpu-9", "--since", "1h"}, kubeconfig...)...)
		files := bundleFiles(t, file)
		if code != 1 || !strings.Contains(errOut, "not in the bundle: nodes/gpu-9: there is no pod of rail-agent") || !strings.Contains(files["README.txt"], "nodes/gpu-9: there is no pod") {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		for name := range files {
			if strings.Contains(name, "gpu-1") {
				t.Errorf("%s is of another node", name)
			}
		}
		lacks(t, files, "Planted")
		contains(t, "the log", files["logs/rail-agent-gpu-2_rail-agent.log"], "sinceSeconds=3600", "tailLines=5000")
	})
	t.Run("a bundle with a long log", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "bundle.tar.gz")
		_, errOut, code := plainRun(append([]string{"support-bundle", "-o", file, "--node", "gpu-2", "--since", "17m"}, kubeconfig...)...)
		if want := "logs/rail-agent-gpu-2_rail-agent.log: only the last 78 lines are here, because the last 625 lines have"; code != 1 || !strings.Contains(errOut, want) {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		contains(t, "the log", bundleFiles(t, file)["logs/rail-agent-gpu-2_rail-agent.log"], "tailLines=78")
	})
	t.Run("a bundle with a long log that is read only once", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "bundle.tar.gz")
		_, errOut, code := plainRun(append([]string{"support-bundle", "-o", file, "--node", "gpu-2", "--since", "18m"}, kubeconfig...)...)
		if want := "logs/rail-agent-gpu-2_rail-agent.log: the last 5000 lines have more than 4194304 bytes, so their end is missing: "; code != 1 || !strings.Contains(errOut, want) {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		contains(t, "the log", bundleFiles(t, file)["logs/rail-agent-gpu-2_rail-agent.log"], "long")
	})
	t.Run("the file of a bundle", func(t *testing.T) {
		dir := t.TempDir()
		file, target := filepath.Join(dir, "bundle.tar.gz"), filepath.Join(dir, "another's")
		if err := errors.Join(os.WriteFile(target, []byte("kept"), 0o644), os.Symlink(target, file)); err != nil {
			t.Fatal(err)
		}
		if _, errOut, code := plainRun("support-bundle", "-o", file, "--kubeconfig", path); code != 0 {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		if text, err := os.ReadFile(target); string(text) != "kept" {
			t.Errorf("the link was followed: %v", err)
		}
		bundleFiles(t, file) // has its mode
		if _, errOut, code := plainRun("support-bundle", "-o", os.DevNull, "--kubeconfig", path); code != 0 {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&os.ModeDevice == 0 {
			t.Fatalf("%s is replaced: %v", os.DevNull, err)
		}
		for _, name := range []string{"/proc/self/fd/1", "/proc/self/fd/3", "/dev/fd/3"} { // not /dev/stdout itself: a failure would replace it
			file := filepath.Join(dir, "redirected")
			to, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(filepath.Join(testnet.Bin(t), "railctl"), "support-bundle", "-o", name, "--kubeconfig", path)
			if cmd.ExtraFiles = []*os.File{to}; strings.HasSuffix(name, "1") {
				cmd.Stdout = to
			}
			if err := errors.Join(cmd.Run(), to.Close()); err != nil {
				t.Errorf("-o %s: %v", name, err)
			} else if files := bundleFiles(t, file); files["README.txt"] == "" {
				t.Errorf("-o %s: the bundle has %q", name, namesOfFiles(files))
			}
		}
		// The file names that railctl would use without -o already exist, for this second and the
		// next seconds.
		t.Chdir(dir)
		for now, i := time.Now(), 0; i < 30; i++ {
			if err := os.Symlink(target, "rail-cni-support-"+now.Add(time.Duration(i)*time.Second).UTC().Format("20060102-150405")+".tar.gz"); err != nil {
				t.Fatal(err)
			}
		}
		if _, errOut, code := plainRun("support-bundle", "--kubeconfig", path); code != 1 || !strings.Contains(errOut, "file exists") {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		if text, err := os.ReadFile(target); string(text) != "kept" {
			t.Errorf("the link was followed: %v", err)
		}
	})
	t.Run("without rights", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "bundle.tar.gz")
		_, errOut, code := plainRun("support-bundle", "-o", file, "--kubeconfig", nobody)
		files := bundleFiles(t, file)
		if have := namesOfFiles(files); code != 1 || !slices.Equal(have, []string{"README.txt"}) || !strings.Contains(errOut, "forbidden") {
			t.Errorf("exit code %d, %q: %s", code, have, errOut)
		}
		contains(t, "README.txt", files["README.txt"], "facts.json: ", "objects/nodes.json: ")
	})
}
