package verify

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
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
		if e.Interface.Deaf != "" || len(e.ReceivedOn) != 1 {
			t.Errorf("%+v", e)
		}
	}
	l.asBefore()
}

// TestDefectsOfAClusterAreNamed plants a wrong MTU, delay, loss and a swapped pair at once.
func TestDefectsOfAClusterAreNamed(t *testing.T) {
	l := theLab(t)
	mend := l.undo(func() { // also if the test fails, or the next tests find these defects
		l.fabric.Batch(nil, "link set n2-rail2 master rail2", "link set n2-rail3 master rail3")
		l.nodes[1].IP("link", "set", l.rails[3], "mtu", "9000")
	})
	l.nodes[1].IP("link", "set", l.rails[3], "mtu", "1500")
	l.fabric.Batch(nil, "link set n2-rail2 master rail3", "link set n2-rail3 master rail2")
	r := l.verifyWhile(verify.ExitDefects, func() {
		pods := l.pods()
		pods[1].Slow("net6")
		pods[0].Drop("net8", 5)
	}, "--probes", "400")
	mend()
	// With two nodes nobody knows which one has the swapped pair.
	want := []string{"latency node-2/5", "loss node-1/7", "mtu node-2/3", "swapped node-1/1 or node-1/2 or node-2/1 or node-2/2"}
	if have := found(r); !slices.Equal(have, want) {
		t.Errorf("%q\n%+v", have, r.Findings)
	}
	for _, f := range r.Findings {
		t.Logf("%s: %s", f.Kind, f.Evidence)
	}
	l.asBefore()
}

// TestImageWithoutPerftestIsUnknown: the rails are measured in the user's image, but not by RDMA.
func TestImageWithoutPerftestIsUnknown(t *testing.T) {
	l := theLab(t)
	l.withoutRDMA(l.verify(verify.ExitUnknown, "--level", "2", "--rdma-image", cluster.ToolsImage), 2, "ib_send_lat is not there: install perftest, or name an image that has it with --rdma-image")
	l.asBefore()
}

// TestPodWithoutRDMADeviceIsUnknown: perftest does not run, so a file with its name is enough.
func TestPodWithoutRDMADeviceIsUnknown(t *testing.T) {
	l := theLab(t)
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "program"), filepath.Join(dir, "image.tar")
	l.must(os.WriteFile(program, []byte("#!/bin/false"), 0o755))
	image := cluster.Image{Name: "localhost/perftest:1", Files: map[string]string{}}
	for _, name := range []string{"ib_send_lat", "ib_write_lat", "ib_write_bw"} {
		image.Files["/bin/"+name] = program
	}
	l.must(image.WriteFile(archive))
	l.must(l.LoadImage(t.Context(), archive))
	l.withoutRDMA(l.verify(verify.ExitUnknown, "--level", "3", "--rdma-image", image.Name), 3, "no rail has an RDMA device in its network namespace: give pods RDMA devices by NRI, or by a device plugin whose resource the networks name")
	l.asBefore()
}

// withoutRDMA fails the test unless the levels below 2 are measured, and the result says of this
// level why it is not.
func (l *lab) withoutRDMA(r *verify.Result, level int, why string) {
	l.t.Helper()
	want := fmt.Sprintf("level %d: %s", level, why)
	if r.Status != verify.Unknown || len(r.Findings) > 0 || len(r.Paths) != 16 || !slices.ContainsFunc(r.Unknown, func(u string) bool { return strings.HasSuffix(u, ": "+want) }) {
		l.t.Errorf("%s, %d paths, %q, %+v", r.Status, len(r.Paths), r.Unknown, r.Findings)
	}
	for _, u := range r.Unknown {
		if !strings.Contains(u, want) {
			l.t.Errorf("%q", u)
		}
	}
	for _, p := range r.Paths {
		if p.Small.Received == 0 || p.Full.Received == 0 {
			l.t.Errorf("%+v", p)
		}
	}
}

// TestRailsThatAnotherPodHasAreUnknown: node-1 has one rail left. One look at its ledger is enough.
func TestRailsThatAnotherPodHasAreUnknown(t *testing.T) {
	l := theLab(t)
	end := l.hold("roce-net-1", "roce-net-2", "roce-net-3", "roce-net-4", "roce-net-5", "roce-net-6", "roce-net-7")
	before := l.jobs()
	r := l.verify(verify.ExitUnknown)
	var want []string
	for k := range 7 {
		want = append(want, fmt.Sprintf("node-1 rail %d: in use by pod default/trainer", k))
	}
	if !slices.Equal(r.Unknown, want) || len(r.Findings) > 0 {
		t.Errorf("%q, %+v", r.Unknown, r.Findings)
	}
	for _, p := range r.Paths {
		if measured := p.Small.Received > 0; measured != (p.From.Rail == 7) {
			t.Errorf("%+v", p)
		}
	}
	tries := 0
	for name := range l.jobs() {
		if m := podName.FindStringSubmatch(name + "-"); !before[name] && m != nil && m[1] == "0" {
			tries++
		}
	}
	if tries != 2 {
		t.Errorf("%d pods were made for node-1", tries)
	}
	end()
	if need.Full() {
		end = l.hold("roce-net-1", "roce-net-2", "roce-net-3", "roce-net-4", "roce-net-5", "roce-net-6", "roce-net-7", "roce-net-8")
		if said := l.cannot(); !strings.Contains(said, "node-1: no rail is left to measure: rail 0: in use by pod default/trainer") {
			t.Errorf("%s", said)
		}
		end()
	}
	l.asBefore()
}

// TestVerifiesAtOnceDoNotHarmEachOther: on each node one of them gets a NIC. The other says who has
// it, and none takes that for a defect.
func TestVerifiesAtOnceDoNotHarmEachOther(t *testing.T) {
	l := theLab(t)
	rounds := 1
	if need.Full() {
		rounds = 5
	}
	for range rounds {
		ends := []func() outcome{l.start(), l.start()}
		for i, end := range ends {
			switch o := end(); {
			case o.code == verify.ExitHealthy:
			case o.code == verify.ExitUnknown && strings.Contains(o.out+o.errOut, "in use by pod default/rail-verify-"):
			default:
				t.Errorf("the run %d has exit code %d\n%s\n%s", i, o.code, o.errOut, o.out)
			}
		}
		l.nothingLeft()
		l.asBefore()
	}
}

func TestSelectorChoosesTheNodes(t *testing.T) {
	l := theLab(t)
	for selector, want := range map[string]string{
		"kubernetes.io/hostname=node-2": "a rail has two ends, but node-2 is the only node",
		"no-such-label":                 "no node has the labels no-such-label",
	} {
		if said := l.cannot("--selector", selector); !strings.Contains(said, want) {
			t.Errorf("%s: %s", selector, said)
		}
	}
}

// TestForeignPodWithTheLabelsOfARunIsLeftAlone makes one that runs before those of the run.
func TestForeignPodWithTheLabelsOfARunIsLeftAlone(t *testing.T) {
	l := theLab(t)
	end := l.start("--level", "0", "--selector", "kubernetes.io/hostname in (node-1,node-2)")
	var labels string
	l.await("a Job", func() bool {
		labels = l.kubectl("get", "jobs", "--selector=rail-cni.io/verify,rail-cni.io/verify-node=0-0", "--output=jsonpath={.items[*].metadata.labels}")
		return labels != ""
	})
	foreign := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign", "labels": %s}, "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 1,
		"containers": [{"name": "verify", "image": %q, "imagePullPolicy": "Never", "stdin": true}]}}`, labels, cluster.ToolsImage)
	remove := l.pod("foreign", foreign)
	r := l.result(end(), verify.ExitHealthy)
	if len(r.Paths) != 16 || !slices.Equal(r.Nodes, []string{"node-1", "node-2"}) {
		t.Errorf("%d paths, %v", len(r.Paths), r.Nodes)
	}
	if left := l.objects(); left != "pod/foreign\n" && left != "pod/foreign" {
		t.Errorf("it left behind, or deleted:\n%s", left)
	}
	remove()
	l.asBefore()
}

func TestImageThatCannotBeHadIsNamed(t *testing.T) {
	l := theLab(t)
	said := l.cannot("--image", "localhost/missing:1", "--network", "roce-net-1", "--start-timeout", "5s")
	for _, want := range []string{"node-1: its pod default/rail-verify-", "node-2: its pod default/rail-verify-", "does not run after 5s: the image localhost/missing:1: ", "name an image that the node has or can pull with --image"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	l.asBefore()
}

// TestNetworksOfADevicePlugin have a resource, which the pods must request. The nodes have it
// without a plugin.
func TestNetworksOfADevicePlugin(t *testing.T) {
	l := theLab(t)
	const resource = "example.com/rail"
	offer := func(node, count string) {
		patch := fmt.Sprintf(`{"status": {"capacity": {%q: %q}, "allocatable": {%q: %q}}}`, resource, count, resource, count)
		l.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", patch)
	}
	var networks []string
	for _, k := range []string{"7", "8"} {
		var nad struct {
			Spec json.RawMessage `json:"spec"`
		}
		l.must(json.Unmarshal([]byte(l.kubectl("get", "network-attachment-definition", "roce-net-"+k, "--output=json")), &nad))
		l.must(l.Apply(t.Context(), fmt.Appendf(nil, `{"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": {"name": "plugin-net-%s", "annotations": {"k8s.v1.cni.cncf.io/resourceName": %q}}, "spec": %s}`, k, resource, nad.Spec)))
		networks = append(networks, "plugin-net-"+k)
	}
	args := []string{"--level", "0", "--network", strings.Join(networks, ",")}
	offer("node-1", "2")
	if need.Full() {
		offer("node-2", "1")
		said := l.cannot(append(args, "--start-timeout", "3s")...)
		if !strings.Contains(said, "node-2: its pod default/rail-verify-") || !strings.Contains(said, "Insufficient "+resource) || !strings.Contains(said, "make room for it on the node") {
			t.Errorf("%s", said)
		}
	}
	offer("node-2", "2")
	r := l.verifyWhile(verify.ExitHealthy, func() {
		l.await("pods that request the devices", func() bool {
			return l.kubectl("get", "pods", "--selector=rail-cni.io/verify", `--output=jsonpath={.items[*].spec.containers[*].resources.limits.example\.com/rail}`) == "2 2"
		})
	}, args...)
	if len(r.Paths) != 4 || r.Rails != 2 {
		t.Errorf("%d paths, %d rails", len(r.Paths), r.Rails)
	}
	l.kubectl("delete", "network-attachment-definition", networks[0], networks[1])
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
		return l.kubectl("get", "pods", "--selector=rail-cni.io/verify", "--output=jsonpath={.items[*].status.phase}") == "Running Running"
	})
	prober := l.pods()[0]
	// It has a socket for each rail that answers, and then one for each rail that asks.
	l.await("packets", func() bool { return strings.Count(prober.Exec("cat", "/proc/net/udp"), "\n") > len(l.rails)+1 })
	l.must(cmd.Process.Kill())
	_ = cmd.Wait()
	t.Logf("the NICs are home after %.1f s", l.await("the NICs", l.home).Seconds())
	t.Logf("no object is left after %.1f s more", l.await("the end of jobs and pods", func() bool { return l.objects() == "" }).Seconds())
	l.asBefore()
}
