package base_test

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
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/deployments/kustomize/base"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// cluster is a control plane with the manifests applied, and a node.
type cluster struct {
	t       *testing.T
	plane   *controlplane.Plane
	state   string
	granted map[string]map[string]bool // by user: "verb resource"
}

// object is one of the manifests.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    []struct{ Resources, Verbs []string }
	RoleRef  struct{ Name string } `yaml:"roleRef"`
	Subjects []struct{ Name, Namespace string }
}

// newCluster starts one, with these definitions beside those of the manifests.
func newCluster(t *testing.T, definitions ...[]byte) *cluster {
	t.Helper()
	c := &cluster{t: t, plane: controlplane.Start(t, controlplane.Options{Audit: true, CRDs: definitions}), state: t.TempDir(), granted: map[string]map[string]bool{}}
	rules := map[string]map[string]bool{}
	for _, text := range base.Objects() {
		c.apply(text, rules)
	}
	return c
}

// apply posts one object, and records what it grants.
func (c *cluster) apply(document []byte, rules map[string]map[string]bool) {
	c.t.Helper()
	var o object
	if err := yaml.Unmarshal(document, &o); err != nil {
		c.t.Fatal(err)
	}
	path := c.path(document)
	code, answer, err := c.plane.Admin().Do(c.t.Context(), "POST", path+"?fieldValidation=Strict", controlplane.YAML, document)
	if err != nil || code != 201 {
		c.t.Fatal(code, string(answer), err)
	}
	for _, r := range o.Rules {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				if rules[o.Metadata.Name] == nil {
					rules[o.Metadata.Name] = map[string]bool{}
				}
				rules[o.Metadata.Name][verb+" "+resource] = true
			}
		}
	}
	for _, s := range o.Subjects {
		user := "system:serviceaccount:" + s.Namespace + ":" + s.Name
		if c.granted[user] == nil {
			c.granted[user] = map[string]bool{}
		}
		maps.Copy(c.granted[user], rules[o.RoleRef.Name])
	}
}

// path returns the collection that an object belongs to.
func (c *cluster) path(document []byte) string {
	c.t.Helper()
	var o object
	if err := yaml.Unmarshal(document, &o); err != nil {
		c.t.Fatal(err)
	}
	in := "namespaces/" + o.Metadata.Namespace + "/"
	const group, admission, flow = "/apis/rbac.authorization.k8s.io/v1/", "/apis/admissionregistration.k8s.io/v1/", "/apis/flowcontrol.apiserver.k8s.io/v1/"
	const monitoring = "/apis/monitoring.coreos.com/v1/"
	path, ok := map[string]string{
		"ServiceAccount": "/api/v1/" + in + "serviceaccounts", "DaemonSet": "/apis/apps/v1/" + in + "daemonsets", "Job": "/apis/batch/v1/" + in + "jobs",
		"Pod": "/api/v1/" + in + "pods", "PodDisruptionBudget": "/apis/policy/v1/" + in + "poddisruptionbudgets", "ConfigMap": "/api/v1/" + in + "configmaps",
		"Deployment": "/apis/apps/v1/" + in + "deployments", "Lease": "/apis/coordination.k8s.io/v1/" + in + "leases",
		"ValidatingAdmissionPolicy": admission + "validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": admission + "validatingadmissionpolicybindings",
		"PodMonitor": monitoring + in + "podmonitors", "PrometheusRule": monitoring + in + "prometheusrules",
		"FlowSchema": flow + "flowschemas", "PriorityLevelConfiguration": flow + "prioritylevelconfigurations",
		"ClusterRole": group + "clusterroles", "ClusterRoleBinding": group + "clusterrolebindings", "Role": group + in + "roles", "RoleBinding": group + in + "rolebindings",
	}[o.Kind]
	if !ok {
		c.t.Fatalf("what is a %s?", o.Kind)
	}
	return path
}

func (c *cluster) kubeconfig(account string) string {
	c.t.Helper()
	return c.kubeconfigOf(c.credential(account))
}

// credential returns a token of an account that is bound to the Node node1, as those of pods are to
// theirs: the policies refuse others.
func (c *cluster) credential(account string) controlplane.Credential {
	c.t.Helper()
	code, answer, err := c.plane.Admin().Create(c.t.Context(), "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": "node1"}})
	if err != nil || code != 201 && code != 409 {
		c.t.Fatal(code, string(answer), err)
	}
	code, answer, err = c.plane.Admin().Create(c.t.Context(), "/api/v1/namespaces/kube-system/serviceaccounts/"+account+"/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": 86400, "boundObjectRef": map[string]any{"apiVersion": "v1", "kind": "Node", "name": "node1"}},
	})
	var request struct{ Status struct{ Token string } }
	if err != nil || code != 201 || json.Unmarshal(answer, &request) != nil {
		c.t.Fatal(code, string(answer), err)
	}
	return controlplane.Credential{Token: request.Status.Token}
}

func (c *cluster) kubeconfigOf(credential controlplane.Credential) string {
	c.t.Helper()
	path, err := c.plane.Kubeconfig(credential, controlplane.Form{})
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

func (c *cluster) create(path string, object any) {
	c.t.Helper()
	code, answer, err := c.plane.Admin().Create(c.t.Context(), path, object)
	if err != nil || code != 201 {
		c.t.Fatal(code, string(answer), err)
	}
}

const crs = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/"

func (c *cluster) createCR(plural, kind, name string, rest map[string]any) {
	c.t.Helper()
	o := map[string]any{"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}}
	maps.Copy(o, rest)
	c.create(crs+plural, o)
}

// plugin runs the built plugin for a pod.
func (c *cluster) plugin(verb, pod, kubeconfig, ipam, more string) string {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(testnet.Bin(c.t), "whereabouts"))
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c-" + pod, "CNI_IFNAME=net1", "CNI_NETNS=/nonexistent/netns", "CNI_PATH=/nonexistent", testnet.OpenNodeFileEnv,
		"CNI_ARGS=IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod, "NODENAME=node1",
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"macvlan","stateDir":%q%s,"ipam":{"type":"whereabouts","kubernetes":{"kubeconfig":%q},%s}}`,
		c.state, more, kubeconfig, ipam))
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s of %s: %v\n%s", verb, pod, err, out)
	}
	return string(out)
}

// wantExactly fails the test unless the account's requests since began were all
// allowed, and there was one for each rule of its roles.
func (c *cluster) wantExactly(account string, began time.Time) {
	c.t.Helper()
	requests, err := c.plane.Requests(c.t.Context(), began)
	if err != nil {
		c.t.Fatal(err)
	}
	user := "system:serviceaccount:kube-system:" + account
	used := map[string]bool{}
	for _, r := range requests {
		if r.User != user {
			continue
		}
		used[r.Verb+" "+r.Resource] = true
		if r.Code == 401 || r.Code == 403 {
			c.t.Errorf("%s: %d to %s %s", account, r.Code, r.Verb, r.URI)
		}
	}
	c.t.Logf("%s used %v", account, slices.Sorted(maps.Keys(used)))
	if !maps.Equal(used, c.granted[user]) {
		c.t.Errorf("%s may do %v", account, slices.Sorted(maps.Keys(c.granted[user])))
	}
}

func TestPluginNeedsExactlyItsRole(t *testing.T) {
	c := newCluster(t)
	kubeconfig, began := c.kubeconfig("rail-cni-whereabouts"), time.Now()
	const pool = `"range":"10.0.0.0/24"`
	for i := 1; i <= 4; i++ { // so that ADD lists them
		c.createCR("overlappingrangeipreservations", "OverlappingRangeIPReservation", fmt.Sprint("10.0.0.", i), map[string]any{"spec": map[string]any{"podref": "other/pod"}})
	}
	result := c.plugin("ADD", "a", kubeconfig, pool, "")
	if !strings.Contains(result, "10.0.0.5/24") {
		t.Errorf("ADD: %s", result)
	}
	c.plugin("ADD", "b", kubeconfig, pool, "")
	c.plugin("CHECK", "a", kubeconfig, pool, `,"prevResult":`+result)
	c.plugin("STATUS", "a", kubeconfig, pool, "")
	c.plugin("GC", "a", kubeconfig, pool, `,"cni.dev/valid-attachments":[{"containerID":"c-a","ifname":"net1"}]`)
	c.plugin("DEL", "a", kubeconfig, pool, "")
	c.createCR("nodeslicepools", "NodeSlicePool", "net", map[string]any{
		"spec":   map[string]any{"range": "10.1.0.0/16", "sliceSize": "/24"},
		"status": map[string]any{"allocations": []any{map[string]any{"nodeName": "node1", "sliceRange": "10.1.3.0/24"}}},
	})
	const slices = `"range":"10.1.0.0/16","node_slice_size":"/24"`
	if result := c.plugin("ADD", "s", kubeconfig, slices, ""); !strings.Contains(result, "10.1.3.1/16") {
		t.Errorf("ADD in a slice: %s", result)
	}
	c.plugin("DEL", "s", kubeconfig, slices, "")
	for i := range 32 { // other nodes hold all blocks but one of the last that node1 asks for
		if block := fmt.Sprintf("10.2.0.%d", 2*i); block != "10.2.0.44" {
			name := "rail-cni-block-" + block + "-31"
			c.create(crs+"ippools", map[string]any{
				"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
				"metadata": map[string]any{"name": name, "annotations": map[string]string{"rail-cni/node": "other", "rail-cni/claim": name}},
				"spec":     map[string]any{"range": block + "/31", "allocations": map[string]any{}},
			})
		}
	}
	const blocks = `"range":"10.2.0.0/26","block_size":2`
	if result := c.plugin("ADD", "b", kubeconfig, blocks, ""); !strings.Contains(result, "10.2.0.44/26") {
		t.Errorf("ADD in a pool of blocks: %s", result)
	}
	c.plugin("DEL", "b", kubeconfig, blocks, "")
	// A node without notes reads the pool to free an address.
	if err := os.RemoveAll(c.state); err != nil {
		t.Fatal(err)
	}
	c.plugin("ADD", "late", kubeconfig, pool, "")
	if err := os.RemoveAll(c.state); err != nil {
		t.Fatal(err)
	}
	c.plugin("DEL", "late", kubeconfig, pool, "")
	c.wantExactly("rail-cni-whereabouts", began)
	for _, name := range []string{"10.0.0.0-24", "node1-10.1.3.0-24"} {
		if left := c.allocations(name); len(left) > 0 {
			t.Errorf("%s still has %v", name, left)
		}
	}
}

func (c *cluster) allocations(pool string) map[string]any {
	c.t.Helper()
	_, answer, err := c.plane.Admin().Get(context.Background(), crs+"ippools/"+pool)
	if err != nil {
		c.t.Fatal(err)
	}
	var p struct {
		Spec struct{ Allocations map[string]any }
	}
	if err := json.Unmarshal(answer, &p); err != nil {
		c.t.Fatal(err)
	}
	return p.Spec.Allocations
}

func TestReconcilerNeedsExactlyItsRole(t *testing.T) {
	c := newCluster(t)
	kubeconfig, began := c.kubeconfig("rail-cni-reconciler"), time.Now()
	entry := func(pod string) map[string]any {
		return map[string]any{"id": "c-" + pod, "podref": "default/" + pod, "ifname": "net1"}
	}
	for _, pod := range []string{"lives", "half"} {
		c.create("/api/v1/namespaces/default/pods", map[string]any{
			"metadata": map[string]any{"name": pod},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}},
		})
	}
	allocations := map[string]any{"1": entry("lives"), "2": entry("half")}
	const many = 120 // more than are requested one by one
	for i := range many {
		allocations[fmt.Sprint(10+i)] = entry(fmt.Sprint("gone-", i))
	}
	c.createCR("ippools", "IPPool", "10.0.0.0-24", map[string]any{"spec": map[string]any{"range": "10.0.0.0/24", "allocations": allocations}})
	for name, pod := range map[string]string{"10.0.0.1": "lives", "10.0.0.10": "gone-0", "10.0.0.200": "gone-200"} {
		c.createCR("overlappingrangeipreservations", "OverlappingRangeIPReservation", name, map[string]any{"spec": map[string]any{"podref": "default/" + pod, "ifname": "net1"}})
	}

	// As the Deployment runs it: not as root, and without a writable file
	// system.
	agent := unprivileged(t, kubeconfig, "ipam", "--grace", "1s", "--node-grace", "1s", "--namespace", "kube-system", "--journal=false")
	var log bytes.Buffer
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	defer func() { _ = agent.Process.Kill() }()
	for deadline := time.Now().Add(time.Minute); len(c.allocations("10.0.0.0-24")) > 2 && time.Now().Before(deadline); {
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(500 * time.Millisecond) // its last requests
	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%v\n%s", err, log.String())
		}
	case <-time.After(20 * time.Second):
		t.Errorf("it does not end by SIGTERM:\n%s", log.String())
	}
	if left := c.allocations("10.0.0.0-24"); len(left) != 2 || left["1"] == nil || left["2"] == nil {
		t.Errorf("the pool has %v\n%s", left, log.String())
	}
	again := unprivileged(t, kubeconfig, "ipam", "--once", "--grace", "0s", "--journal=false")
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("--once: %v\n%s", err, out)
	}
	c.wantExactly("rail-cni-reconciler", began)
}

// unprivileged returns rail-agent's command for a user who owns nothing but the
// kubeconfig.
func unprivileged(t *testing.T, kubeconfig string, args ...string) *exec.Cmd {
	t.Helper()
	const nobody = 65534
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(testnet.Bin(t), "rail-agent"))
	if err != nil {
		t.Fatal(err)
	}
	dir := scratch.Dir(t) // t.TempDir is below a directory that only root may enter
	config, copied := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "rail-agent")
	if err := errors.Join(os.WriteFile(config, text, 0o600), os.Chown(config, nobody, nobody), os.WriteFile(copied, program, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copied, append(args, "--kubeconfig", config)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestAgentNeedsExactlyItsRole(t *testing.T) {
	c := newCluster(t)
	kubeconfig, began := c.kubeconfig("rail-cni-agent"), time.Now()
	c.keep(kubeconfig)
	c.wantExactly("rail-cni-agent", began)
}

// keep has the keeper of a node install, with the plugin's credentials, and
// report a removed plugin.
func (c *cluster) keep(kubeconfig string) {
	c.t.Helper()
	bin, conf := c.t.TempDir(), c.t.TempDir()
	keeper := exec.Command(filepath.Join(testnet.Bin(c.t), "rail-agent"), "run", "--node", "node1", "--kubeconfig", kubeconfig,
		"--state-dir", scratch.Dir(c.t), "--metrics", "off", "--install", "--record", filepath.Join(c.t.TempDir(), "record"), "--cni-bin", bin, "--cni-conf", conf)
	var log bytes.Buffer
	keeper.Stderr = &log
	if err := keeper.Start(); err != nil {
		c.t.Fatal(err)
	}
	await := func(what string, done func() bool) {
		for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				c.t.Errorf("%s did not come", what)
				return
			}
		}
	}
	flat := filepath.Join(conf, "whereabouts.d", "whereabouts.conf")
	await("the flat file", func() bool {
		_, err := os.Stat(flat)
		return err == nil
	})
	if result := c.plugin("ADD", "by-flat-file", "", fmt.Sprintf(`"range":"10.0.0.0/24","configuration_path":%q`, flat), ""); !strings.Contains(result, `"10.0.0.`) {
		c.t.Errorf("ADD: %s", result)
	}
	if err := os.Remove(filepath.Join(bin, "macvlan")); err != nil {
		c.t.Error(err)
	}
	await("an Event", func() bool {
		_, answer, err := c.plane.Admin().Get(context.Background(), "/api/v1/namespaces/default/events")
		if err != nil {
			c.t.Fatal(err)
		}
		return bytes.Contains(answer, []byte("PluginRestored"))
	})
	_ = keeper.Process.Signal(syscall.SIGTERM)
	if err := keeper.Wait(); err != nil || c.t.Failed() {
		c.t.Errorf("%v\n%s", err, log.String())
	}
}
