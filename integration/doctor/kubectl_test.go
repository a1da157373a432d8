package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// person is a user of the cluster with kubectl and its plugin "rail".
type person struct {
	*lab
	t          *testing.T
	kubeconfig string
	path       string // directory of the plugin
}

// newPerson returns the person with the kubeconfig.
func newPerson(t *testing.T, l *lab, kubeconfig string) *person {
	t.Helper()
	p := &person{lab: l, t: t, kubeconfig: kubeconfig, path: t.TempDir()}
	bin, err := filepath.Abs(l.bin)
	need.NoError(t, errors.Join(err, os.Symlink(filepath.Join(bin, "railctl"), filepath.Join(p.path, "kubectl-rail"))))
	return p
}

// rail runs "kubectl rail".
func (p *person) rail(args ...string) (out, errOut string, code int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.KubectlPath(), append([]string{"rail"}, args...)...)
	cmd.Env = []string{"PATH=" + p.path + ":" + os.Getenv("PATH"), "HOME=" + p.path, "KUBECONFIG=" + p.kubeconfig}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	p.t.Logf("kubectl rail %s: %v after %v", strings.Join(args, " "), err, time.Since(began).Round(10*time.Millisecond))
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// bundle runs "kubectl rail support-bundle", and returns the bundle's files.
func (p *person) bundle(args ...string) (files map[string]string, errOut string, code int) {
	p.t.Helper()
	file := filepath.Join(p.path, "bundle.tar.gz")
	_, errOut, code = p.rail(append([]string{"support-bundle", "-o", file}, args...)...)
	data, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	return testnet.Archive(p.t, data), errOut, code
}

// supporterRules are the rights for a support bundle, as the help of the command has them, without that
// to run programs in pods.
const supporterRules = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: supporter}
rules:
- {apiGroups: [""], resources: [pods, nodes, events], verbs: [list]}
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
- {apiGroups: [apps], resources: [daemonsets, deployments], verbs: [list]}
- {apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list]}
- {apiGroups: [k8s.cni.cncf.io], resources: [network-attachment-definitions], verbs: [list]}
- {apiGroups: [whereabouts.cni.cncf.io], resources: [ippools, overlappingrangeipreservations], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: supporter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: supporter}
subjects: [{kind: User, name: supporter}]
`

// execRules are the right to run programs in the agents' pods, with these verbs.
const execRules = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: execer, namespace: kube-system}
rules: [{apiGroups: [""], resources: [pods/exec], verbs: [%s]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: execer, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: execer}
subjects: [{kind: User, name: supporter}]
`

// supporter returns a person with the rights for a bundle except that to run programs in pods.
func (l *lab) supporter(t *testing.T) *person {
	t.Helper()
	need.NoError(t, l.Apply(t.Context(), []byte(supporterRules)))
	t.Cleanup(func() {
		_, err := l.Kubectl(context.Background(), "delete", "--ignore-not-found", "clusterrole/supporter", "clusterrolebinding/supporter")
		_, execErr := l.Kubectl(context.Background(), "delete", "--namespace", agents, "--ignore-not-found",
			"role/execer", "rolebinding/execer")
		if err := errors.Join(err, execErr); err != nil {
			t.Error(err)
		}
	})
	credential, err := l.CertificateFor("supporter")
	need.NoError(t, err)
	kubeconfig, err := l.Plane.Kubeconfig(credential, controlplane.Form{})
	need.NoError(t, err)
	return newPerson(t, l, kubeconfig)
}

func TestKubectlRailOnEachNode(t *testing.T) {
	l := theLab(t)
	l.healthy(t)
	admin := newPerson(t, l, l.Kubeconfig())
	for i, n := range l.Nodes() {
		for _, c := range []struct {
			args string
			want []string
		}{
			{"nics", []string{"ens12np0", fmt.Sprintf("default/train-%d", i+1)}},
			{"show", []string{fmt.Sprintf("default/train-%d", i+1), "net4"}},
			{"show -o json", []string{fmt.Sprintf(`"default/train-%d"`, i+1)}},
			{"doctor", []string{" ok"}},
			{"version", []string{"rail"}},
		} {
			if c.args == "version" && i > 0 {
				continue // of the program here
			}
			args := strings.Fields(c.args)
			if c.args != "version" {
				args = append(args, "--node", n.Name)
			}
			out, errOut, code := admin.rail(args...)
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("%s on %s: %q is not in\n%s", c.args, n.Name, want, out)
				}
			}
			if code != 0 || errOut != "" && !strings.Contains(errOut, "waiting for") { // for the API server, on a busy machine
				t.Errorf("%s on %s: exit code %d: %s", c.args, n.Name, code, errOut)
			}
		}
	}
	for args, want := range map[string]string{"nics": "name it with --node", "nics --node node-9": "these have one: node-1, node-2"} {
		if out, errOut, code := admin.rail(strings.Fields(args)...); code != 1 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, %s%s", args, code, out, errOut)
		}
	}
}

// The cure of the error is what the user needs, and is enough.
func TestKubectlRailWithoutTheRightToRunPrograms(t *testing.T) {
	l := theLab(t)
	l.healthy(t)
	user := l.supporter(t)
	const cure = `: apiGroups [""], resources ["pods/exec"], verbs ["create", "get"], in the namespace "kube-system"`
	refused := func() {
		t.Helper()
		for _, command := range []string{"nics", "show", "doctor"} {
			out, errOut, code := user.rail(command, "--node", l.Node(1).Name)
			if code == 0 || out != "" || !strings.Contains(errOut, "is forbidden") || !strings.Contains(errOut, cure) {
				t.Errorf("%s: exit code %d, %s%s", command, code, out, errOut)
			}
		}
	}
	refused()
	files, errOut, code := user.bundle()
	if code != 1 || !strings.Contains(errOut, cure) {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	for _, n := range l.Nodes() {
		for _, name := range []string{"show.json", "nics.json", "version.json"} {
			if path := "nodes/" + n.Name + "/" + name; files[path] != "" || !strings.Contains(files["README.txt"], "  "+path+": ") {
				t.Errorf("%s is there, or not said to be missing:\n%s", path, files["README.txt"])
			}
		}
	}
	l.wantOfAPIServer(t, files)

	need.NoError(t, l.Apply(t.Context(), fmt.Appendf(nil, execRules, "get"))) // enough before Kubernetes 1.35
	refused()
	need.NoError(t, l.Apply(t.Context(), fmt.Appendf(nil, execRules, "create, get")))
	if out, errOut, code := user.rail("nics", "--node", l.Node(1).Name); code != 0 || !strings.Contains(out, "ens12np0") {
		t.Errorf("with the right: exit code %d, %s%s", code, out, errOut)
	}
	if _, errOut, code := user.bundle(); code != 0 || errOut != "" {
		t.Errorf("with the right: exit code %d, %s", code, errOut)
	}
}

// agentOn returns the name of the agent's pod of a node.
func (l *lab) agentOn(t *testing.T, node int) string {
	t.Helper()
	name, err := l.Kubectl(t.Context(), "--namespace", agents, "get", "pod", "--selector", agentSelector,
		"--field-selector", "spec.nodeName="+l.Node(node).Name, "--output", "jsonpath={.items[*].metadata.name}")
	need.NoError(t, err)
	return name
}

// wantOfAPIServer fails the test unless a bundle has what the API server knows without the nodes.
func (l *lab) wantOfAPIServer(t *testing.T, files map[string]string) {
	t.Helper()
	for path, want := range map[string]string{
		"objects/network-attachment-definitions.json": "roce-net-8", "objects/nodes.json": "node-2", "objects/pods.json": l.agentOn(t, 1),
		"objects/daemonsets.json": "rail-agent", "objects/deployments.json": "rail-cni-reconciler", "objects/events.json": "rail-agent",
	} {
		if !strings.Contains(files[path], want) {
			t.Errorf("%s: %q is not in %.500s", path, want, files[path])
		}
	}
}

// wantOfNode fails the test unless a bundle has the log of a node's agent, its attachments and its NICs.
func (l *lab) wantOfNode(t *testing.T, files map[string]string, node int) {
	t.Helper()
	dir := "nodes/" + l.Node(node).Name + "/"
	for path, want := range map[string]string{
		dir + "show.json": fmt.Sprintf(`"default/train-%d"`, node+1), dir + "nics.json": "ens12np0",
		dir + "version.json": "version", dir + "node.yaml": "0000:41:00.0",
		"logs/" + l.agentOn(t, node) + "_rail-agent.log": "level=",
	} {
		if !strings.Contains(files[path], want) {
			t.Errorf("%s: %q is not in %.500s", path, want, files[path])
		}
	}
}

// wantFacts fails the test unless the facts of a bundle are those of these nodes, and are what "railctl
// doctor cluster --facts" takes.
func (p *person) wantFacts(files map[string]string, nodes ...string) {
	p.t.Helper()
	var f fact.Facts
	if err := json.Unmarshal([]byte(files["facts.json"]), &f); err != nil || f.Cluster == nil {
		p.t.Fatalf("facts.json: %v: %.500s", err, files["facts.json"])
	}
	var have []string
	for _, n := range f.Cluster.Nodes {
		have = append(have, n.Node)
	}
	if slices.Sort(have); !slices.Equal(have, nodes) {
		p.t.Errorf("the facts are those of %q, not %q", have, nodes)
	}
	path := filepath.Join(p.path, "facts.json")
	need.NoError(p.t, os.WriteFile(path, []byte(files["facts.json"]), 0o600))
	if out, errOut, _ := p.rail("doctor", "cluster", "--facts", path); errOut != "" || !strings.Contains(out, " ok") {
		p.t.Errorf("the facts: %s%s", out, errOut)
	}
	for _, name := range nodes {
		if !strings.Contains(files["report.html"], name) {
			p.t.Errorf("report.html lacks %s", name)
		}
	}
}

// agentLogs writes a line to the log of the agent of a node, as the agent does.
func (p *planter) agentLogs(node int, line string) {
	p.t.Helper()
	_, err := p.Node(node).Exec(p.t.Context(), "sh", "-ec", `for dir in /proc/[0-9]*; do
	test "$(tr '\0' ' ' <$dir/cmdline 2>/dev/null | cut -c 1-16)" = "/rail-agent run " || continue
	echo "$1" >$dir/fd/2
	exit
done
exit 1`, "sh", line)
	p.must(err)
}

func TestSupportBundleOfTheCluster(t *testing.T) {
	l := theLab(t)
	l.healthy(t)
	admin := newPerson(t, l, l.Kubeconfig())
	p := &planter{lab: l, t: t}
	t.Cleanup(p.undoAll)
	// What is not a bundle's: in a network, in an annotation, in a log, and in the node's kubeconfig.
	p.nad("planted", `{"cniVersion": "1.0.0", "name": "planted", "type": "host-device", "device": "ens12np0",
		"ipam": {"type": "whereabouts", "range": "10.71.0.0/24", "etcd_password": "PlantedInConfig",
			"kubernetes": {"kubeconfig": "/etc/x.kubeconfig", "token": "PlantedToken"}}}`, "")
	_, err := l.Kubectl(t.Context(), "annotate", "net-attach-def", "planted",
		"example.com/password=PlantedInAnnotation", "example.com/note=login --token PlantedInNote")
	p.must(err)
	p.agentLogs(0, `level=WARN msg="planted phrase" token=PlantedInLog url=https://user:PlantedInURL@registry.example/x`)
	secrets := []string{"PlantedIn", "PlantedToken"}
	for _, n := range l.Nodes() {
		text, err := os.ReadFile(filepath.Join(n.CNIConf(), "whereabouts.d", "whereabouts.kubeconfig"))
		p.must(err)
		_, token, found := strings.Cut(string(text), "token: ")
		token, _, _ = strings.Cut(token, "\n")
		if token = strings.Trim(token, `" `); !found || len(token) < 100 {
			t.Fatalf("the kubeconfig of %s has no token", n.Name)
		}
		secrets = append(secrets, token[len(token)-60:])
	}
	// An Event of the agent's.
	began := time.Now().Truncate(time.Second)
	p.must(os.Remove(filepath.Join(l.Node(0).CNIBin(), "macvlan")))
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		if text, err := l.events(t.Context(), 0, "PluginRestored", began); err != nil || text != "" {
			p.must(err)
			break
		} else if time.Now().After(deadline) {
			t.Fatal("no Event tells that the plugin was restored")
		}
	}

	files, errOut, code := admin.bundle()
	if code != 0 || errOut != "" {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	admin.wantFacts(files, l.Node(0).Name, l.Node(1).Name)
	l.wantOfAPIServer(t, files)
	for i := range l.Nodes() {
		l.wantOfNode(t, files, i)
	}
	log := "logs/" + l.agentOn(t, 0) + "_rail-agent.log"
	for path, want := range map[string]string{
		log: "planted phrase", "objects/network-attachment-definitions.json": "10.71.0.0/24", "objects/events.json": "PluginRestored",
		"findings.txt": " on 2 nodes",
	} {
		if !strings.Contains(files[path], want) {
			t.Errorf("%s: %q is not in %.500s", path, want, files[path])
		}
	}
	for path, text := range files {
		for _, secret := range secrets {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s has a secret: %s", path, text[max(0, at-100):min(len(text), at+100)])
			}
		}
	}
	readme := files["README.txt"]
	for _, want := range []string{
		"everything could be read", "  " + log + ": 2\n", "  objects/network-attachment-definitions.json: ",
		"Secrets, ConfigMaps and kubeconfigs were not read",
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("%q is not in\n%s", want, readme)
		}
	}
	for path := range files {
		if path != "README.txt" && !strings.Contains(readme, "  "+path+"\n") {
			t.Errorf("README.txt lacks %s", path)
		}
	}
	t.Logf("%d files: %q", len(files), slices.Sorted(maps.Keys(files)))
}

func TestSupportBundleWithoutTheKubeletOfANode(t *testing.T) {
	l := theLab(t)
	l.healthy(t)
	admin := newPerson(t, l, l.Kubeconfig())
	n, silent := l.Node(0), l.Node(1)
	t.Cleanup(func() {
		if err := silent.StartKubelet(context.Background()); err != nil {
			t.Fatal(err)
		}
		_, err := l.Kubectl(context.Background(), "wait", "--for=condition=Ready", "--timeout", patience.String(), "node/"+silent.Name)
		if err != nil {
			t.Error(err)
		}
	})
	silent.KillKubelet()
	files, errOut, code := admin.bundle()
	readme := files["README.txt"]
	if code != 1 {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	admin.wantFacts(files, n.Name)
	l.wantOfAPIServer(t, files)
	l.wantOfNode(t, files, 0)
	_, notRead, _ := strings.Cut(readme, "\nNOT READ\n")
	dir, log := "nodes/"+silent.Name+"/", "logs/"+l.agentOn(t, 1)+"_rail-agent.log"
	for _, path := range []string{dir + "show.json", dir + "nics.json", dir + "version.json", log, "the facts of " + silent.Name} {
		if files[path] != "" || !strings.Contains(notRead, "  "+path+": ") {
			t.Errorf("%s is there, or not said to be missing:\n%s", path, notRead)
		}
		if !strings.Contains(errOut, "not in the bundle: "+path+": ") {
			t.Errorf("%s is not said to be missing: %s", path, errOut)
		}
	}
	if strings.Contains(notRead, "nodes/"+n.Name+"/") {
		t.Errorf("what %s has is missing too: %s", n.Name, notRead)
	}
	if !strings.Contains(files["findings.txt"], "CLUSTER-SILENT") {
		t.Errorf("the findings lack the node: %s", files["findings.txt"])
	}
}
