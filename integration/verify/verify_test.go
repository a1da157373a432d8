package verify

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

func TestHealthyRailsOfAClusterAreHealthy(t *testing.T) {
	l := theLab(t)
	r := l.verify(verify.ExitHealthy)
	if r.Status != verify.Healthy || len(r.Findings) > 0 || len(r.Paths) != 16 || r.Tested != 56 || !slices.Equal(r.Nodes, []string{"node-1", "node-2"}) {
		t.Errorf("%s, %d paths, %d crossings, nodes %v, %+v", r.Status, len(r.Paths), r.Tested, r.Nodes, r.Findings)
	}
	for _, p := range r.Paths {
		if p.Full.Received != p.Full.Sent || p.Full.Size != 9000 || p.Route == nil || p.Route.MAC == "" {
			t.Errorf("%+v", p)
		}
	}
	for _, e := range r.Ends {
		if e.Interface.Deaf != "" || len(e.HeardOn) != 1 {
			t.Errorf("%+v", e)
		}
	}
	l.asBefore()
}

func TestDefectsOfAClusterAreNamed(t *testing.T) {
	l := theLab(t)
	// A wrong MTU, delay and loss, each of a rail of a node.
	l.nodes[1].IP("link", "set", l.rails[3], "mtu", "1500")
	r := l.verifyWhile(verify.ExitDefects, func() {
		pods := l.pods()
		pods[1].Slow("net6")
		pods[0].Drop("net2", 5)
	}, "--probes", "1000")
	if have := found(r); !slices.Equal(have, []string{"latency node-2/5", "loss node-1/1", "mtu node-2/3"}) {
		t.Errorf("%q\n%+v", have, r.Findings)
	}
	for _, f := range r.Findings {
		t.Logf("%s: %s", f.Kind, f.Evidence)
	}
	l.nodes[1].IP("link", "set", l.rails[3], "mtu", "9000")

	l.fabric.Batch(nil, "link set n2-rail2 master rail3", "link set n2-rail3 master rail2")
	r = l.verify(verify.ExitDefects)
	l.fabric.Batch(nil, "link set n2-rail2 master rail2", "link set n2-rail3 master rail3")
	// With two nodes nobody knows which one has it.
	if have := found(r); !slices.Equal(have, []string{"swapped node-1/1 or node-1/2 or node-2/1 or node-2/2"}) {
		t.Errorf("%q\n%+v", have, r.Findings)
	}
	l.asBefore()
}

// TestProberRunsInTheUsersImage, which has no perftest.
func TestProberRunsInTheUsersImage(t *testing.T) {
	l := theLab(t)
	r := l.verify(verify.ExitUnknown, "--level", "2", "--rdma-image", cluster.ToolsImage)
	if len(r.Findings) > 0 || len(r.Paths) != 16 || len(r.Unknown) == 0 || !strings.Contains(r.Unknown[0], "ib_send_lat is not there") {
		t.Errorf("%d paths, %q, %+v", len(r.Paths), r.Unknown, r.Findings)
	}
	for _, p := range r.Paths {
		if p.Small.Received == 0 {
			t.Errorf("%+v", p)
		}
	}
	l.asBefore()
}

func TestRailThatAnotherPodHasIsUnknown(t *testing.T) {
	l := theLab(t)
	holder := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer", "annotations": {"k8s.v1.cni.cncf.io/networks": "roce-net-7"}},
		"spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "localhost/tools:1", "imagePullPolicy": "Never"}]}}`
	l.must(l.Apply(t.Context(), []byte(holder)))
	if _, err := l.Kubectl(t.Context(), "wait", "--for=condition=Ready", "--timeout=3m", "pod/trainer"); err != nil {
		t.Fatal(err)
	}
	r := l.verify(verify.ExitUnknown)
	if len(r.Findings) > 0 || len(r.Unknown) != 1 || !strings.HasPrefix(r.Unknown[0], "node-1 rail 6: in use by pod default/trainer") {
		t.Errorf("%q, %+v", r.Unknown, r.Findings)
	}
	measured := 0
	for _, p := range r.Paths {
		if p.Small.Received > 0 {
			measured++
		}
	}
	if measured != 14 {
		t.Errorf("%d paths were measured", measured)
	}
	if _, err := l.Kubectl(t.Context(), "delete", "pod", "trainer", "--wait"); err != nil {
		t.Fatal(err)
	}
	l.asBefore()
}

func TestNothingIsLeftWhenRailctlIsKilled(t *testing.T) {
	l := theLab(t)
	cmd := l.command("--probes", "10000")
	l.must(cmd.Start())
	l.await("pods that have the NICs", func() bool {
		for _, n := range l.nodes {
			if slices.ContainsFunc(l.rails, n.Has) {
				return false
			}
		}
		out, err := l.Kubectl(t.Context(), "get", "pods", "--selector=rail-cni.io/verify", "--output=jsonpath={.items[*].status.phase}")
		return err == nil && out == "Running Running"
	})
	time.Sleep(5 * time.Second)
	l.must(cmd.Process.Kill())
	_ = cmd.Wait()
	t.Logf("the NICs are home after %.1f s", l.await("the NICs", l.home).Seconds())
	t.Logf("no object is left after %.1f s more", l.await("the end of jobs and pods", func() bool { return l.objects() == "" }).Seconds())
	l.asBefore()
}
