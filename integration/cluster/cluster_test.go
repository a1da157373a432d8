package cluster

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// sleeper is a pod that sleeps.
const sleeper = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  hostNetwork: %v
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: %q}]
`

func TestPodsRunAndAreReached(t *testing.T) {
	began := time.Now()
	c := Start(t, Options{Hardware: true})
	t.Logf("up after %v", time.Since(began).Round(time.Millisecond))
	ctx := t.Context()
	image := Image{Name: "localhost/test:1", Entrypoint: []string{"/bin/busybox", "sleep", "3600"}, Files: map[string]string{
		"/bin/busybox": filepath.Join(c.files.runtime, "busybox"), "/bin/kubectl": filepath.Join(c.files.kubernetes, "kubectl"),
	}}
	image.Links = map[string]string{"/bin/ping": "busybox"}
	archive := filepath.Join(t.TempDir(), "test.tar")
	if err := image.WriteFile(archive); err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImage(ctx, archive); err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct {
		name string
		node int
		host bool
	}{{"a", 0, false}, {"b", 1, false}, {"h", 1, true}} {
		if err := c.Apply(ctx, fmt.Appendf(nil, sleeper, p.name, c.Node(p.node).Name, p.host, image.Name)); err != nil {
			t.Fatal(err)
		}
	}
	began = time.Now()
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=2m", "pod/a", "pod/b", "pod/h"); err != nil {
		t.Fatal(err)
	}
	t.Logf("pods Ready after %v", time.Since(began).Round(time.Millisecond))
	ip, err := c.Kubectl(ctx, "get", "pod", "b", "-o", "jsonpath={.status.podIP}")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.Exec(ctx, "a", "ping", "-c1", "-W5", ip); err != nil {
		t.Errorf("from a to b: %v\n%s", err, out)
	}
	// In-cluster configuration: the address in a pod's environment, the mounted
	// CA and token.
	for _, pod := range []string{"a", "h"} {
		out, err := c.Exec(ctx, pod, "kubectl", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
		if want := "system:serviceaccount:default:default"; err != nil || out != want {
			t.Errorf("%s is %q for the API server (%v), not %q", pod, out, err, want)
		}
	}
	railsFallHome(t, c.Node(0))
}

// railsFallHome: a NIC in a network namespace that ends is on the host again,
// down, with its name of that time.
func railsFallHome(t *testing.T, n *Node) {
	t.Helper()
	const rail = "ens12np0"
	run := func(args ...string) string {
		t.Helper()
		out, err := n.Exec(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	run("ip", "netns", "add", "pod")
	run("ip", "link", "set", rail, "netns", "pod", "name", "net1", "alias", "lent")
	run("ip", "-n", "pod", "link", "set", "net1", "up")
	// A namespace must not end before the watcher has seen it; a pod's lives
	// longer.
	time.Sleep(100 * time.Millisecond)
	run("ip", "netns", "del", "pod")
	var link string
	for deadline := time.Now().Add(20 * time.Second); link == "" && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		link, _ = n.Exec(t.Context(), "ip", "-o", "link", "show", "net1")
	}
	if !strings.Contains(link, "alias lent") || !strings.Contains(link, "altname "+Altname(0)) || !strings.Contains(link, "state DOWN") {
		t.Errorf("the returned NIC is %q", link)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	need.Cluster(t)
	before := mounts(t)
	c, err := New(t.Context(), t.TempDir(), oneNode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // if this test fails
	processes := c.withAPod(t)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	nothingIsLeft(t, processes, os.Getpid())
	if after := mounts(t); after != before {
		t.Errorf("mounts before:\n%s\nafter:\n%s", before, after)
	}
}

func TestEndsWithTheProcessThatStartedIt(t *testing.T) {
	need.Cluster(t)
	const child = "RAIL_CNI_CLUSTER_TEST_DIE"
	if os.Getenv(child) != "" {
		c, err := New(t.Context(), t.TempDir(), oneNode)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("processes:", strings.Trim(fmt.Sprint(c.withAPod(t)), "[]"), ".")
		select {} // until it is killed
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var processes []int
	for lines := bufio.NewScanner(out); processes == nil && lines.Scan(); {
		if _, list, ok := strings.Cut(lines.Text(), "processes: "); ok {
			for field := range strings.FieldsSeq(strings.TrimSuffix(list, ".")) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					t.Error(err)
				}
				processes = append(processes, pid)
			}
		} else {
			t.Log(lines.Text())
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if len(processes) == 0 {
		t.Fatal("no cluster came up")
	}
	nothingIsLeft(t, processes, cmd.Process.Pid)
}

var oneNode = Options{Nodes: 1, Rails: []string{"ens1"}, Multus: Thick}

// withAPod runs a pod, and returns all processes of the cluster.
func (c *Cluster) withAPod(t *testing.T) (pids []int) {
	t.Helper()
	if err := c.Apply(t.Context(), fmt.Appendf(nil, sleeper, "a", c.Node(0).Name, false, ToolsImage)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(t.Context(), "wait", "--for=condition=Ready", "--timeout=2m", "pod/a"); err != nil {
		t.Fatal(err)
	}
	// Those in the network namespaces of the control plane and the node, and
	// those in the cgroups of the node's pods.
	homes := map[string]bool{}
	for _, pid := range []int{c.holder.Pid(), c.Node(0).Pid()} {
		home, err := os.Readlink(namespace(pid, "net"))
		if err != nil {
			t.Fatal(err)
		}
		homes[home] = true
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		home, _ := os.Readlink(path + "/ns/net") // it may end meanwhile
		cgroups, _ := os.ReadFile(path + "/cgroup")
		if homes[home] || strings.Contains(string(cgroups), "/"+c.cgroup+"/") {
			pid, err := strconv.Atoi(filepath.Base(path))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	// etcd, API server, scheduler, controllers, holder; init, Multus, containerd,
	// kubelet, a shim and two containers.
	if len(pids) < 12 {
		t.Fatalf("%d processes, want at least 12", len(pids))
	}
	return pids
}

// nothingIsLeft fails the test unless the processes are gone, and the cgroups
// of the clusters that a process had.
func nothingIsLeft(t *testing.T, pids []int, starter int) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		left = left[:0]
		for _, pid := range pids {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err == nil && !strings.Contains(string(status), "State:\tZ") { // waits for a lazy init
				left = append(left, string(status))
			}
		}
		for _, depth := range []string{"", "*/"} { // version 2 and version 1
			cgroups, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/%srail-cluster-%d-*", depth, starter))
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, cgroups...)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left:\n%s", strings.Join(left, "\n"))
		}
	}
}

// mounts returns those mounts of this process that each node has its own of,
// except network namespaces, because other tests make some.
func mounts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		point := strings.Fields(line)[1]
		for _, dir := range append([]string{"/run", "/proc", "/sys"}, private...) {
			if strings.HasPrefix(point+"/", dir+"/") && !strings.HasPrefix(point, "/run/netns") {
				b.WriteString(line)
			}
		}
		if point == "/etc" || point == "/opt" || point == "/var" {
			b.WriteString(line)
		}
	}
	return b.String()
}
