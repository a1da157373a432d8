package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	c := Start(t, Options{})
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
}

// What a cluster leaves on the machine: nothing.
func TestCloseLeavesNothing(t *testing.T) {
	before := leftovers(t)
	c, err := New(t.Context(), t.TempDir(), Options{Nodes: 1, Rails: []string{"ens1"}})
	if err != nil {
		t.Fatal(err)
	}
	pids := append([]int{c.holder.Pid()}, c.Node(0).Pid())
	if err := c.Apply(t.Context(), fmt.Appendf(nil, sleeper, "a", c.Node(0).Name, false, ToolsImage)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(t.Context(), "wait", "--for=condition=Ready", "--timeout=2m", "pod/a"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			t.Errorf("process %d is left", pid)
		}
	}
	if after := leftovers(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// leftovers lists what a cluster might leave.
func leftovers(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/sys/fs/cgroup/*/rail-cluster-" + fmt.Sprint(os.Getpid()) + "-*")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if !strings.HasPrefix(line, "nsfs ") { // those of other tests
			found = append(found, line)
		}
	}
	return strings.Join(found, "\n")
}
