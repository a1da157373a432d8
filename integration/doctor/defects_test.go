package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/gpuplugin"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// defect is something wrong with the cluster.
type defect struct {
	name  string
	plant func(p *planter)
	// found are the rules that find it, by ID, each with a part of a finding: those of "railctl
	// doctor cluster", and those of "railctl doctor" on the first node. nil: nobody judges there.
	found, onNode map[string]string
}

// planter plants one defect.
type planter struct {
	*lab
	t     *testing.T
	undos []func(ctx context.Context) error
}

// undo adds an undoing. The last one is the first to be called.
func (p *planter) undo(do func(ctx context.Context) error) { p.undos = append(p.undos, do) }

// undoAll calls the undoings once.
func (p *planter) undoAll() {
	p.t.Helper()
	for len(p.undos) > 0 {
		do := p.undos[len(p.undos)-1]
		p.undos = p.undos[:len(p.undos)-1]
		if err := do(context.Background()); err != nil {
			p.t.Errorf("undo: %v", err)
		}
	}
}

func (p *planter) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// onHost runs a script on a node, and another one to undo it.
func (p *planter) onHost(node int, script, undo string) {
	p.t.Helper()
	p.undo(func(ctx context.Context) error { _, err := p.Node(node).Exec(ctx, "sh", "-ec", undo); return err })
	_, err := p.Node(node).Exec(p.t.Context(), "sh", "-ec", script)
	p.must(err)
}

// inPod runs a script with the network of a pod, and another one to undo it.
func (p *planter) inPod(pod, script, undo string) {
	p.t.Helper()
	n, r := p.record(pod, "net1")
	run := func(ctx context.Context, script string) error {
		_, err := n.Exec(ctx, "nsenter", "--net="+r.Netns.Path, "sh", "-ec", script)
		return err
	}
	if undo != "" {
		p.undo(func(ctx context.Context) error { return run(ctx, undo) })
	}
	p.must(run(p.t.Context(), script))
}

// record returns the record of a pod's interface, and its node.
func (p *planter) record(pod, ifName string) (*cluster.Node, *ledger.Record) {
	p.t.Helper()
	for _, n := range p.Nodes() {
		book, err := ledger.Open(n.Path("/run/rail-cni"))
		p.must(err)
		records, errs := book.List()
		book.Close()
		p.must(errors.Join(errs...))
		for _, r := range records {
			if r.Pod != nil && r.Pod.Name == pod && r.IfName == ifName {
				return n, r
			}
		}
	}
	p.t.Fatalf("there is no record of %s of %s", ifName, pod)
	return nil, nil
}

// recordFile returns the path of the record of a pod's interface.
func (p *planter) recordFile(pod, ifName string) string {
	p.t.Helper()
	n, r := p.record(pod, ifName)
	return n.Path(filepath.Join("/run/rail-cni/attachments", r.ContainerID+"@"+ifName+".json"))
}

// edit changes a file, and writes it back as it was to undo that. Without a change it removes
// the file.
func (p *planter) edit(path string, change func(text string) string) {
	p.t.Helper()
	text, err := os.ReadFile(path)
	p.must(err)
	info, err := os.Stat(path)
	p.must(err)
	replace := func(text []byte) error { // at once, as programs do that may be read meanwhile
		temporary := filepath.Join(filepath.Dir(filepath.Dir(path)), "edited")
		return errors.Join(os.WriteFile(temporary, text, info.Mode()), os.Rename(temporary, path))
	}
	p.undo(func(context.Context) error { return replace(text) })
	if change == nil {
		p.must(os.Remove(path))
		return
	}
	p.must(replace([]byte(change(string(text)))))
}

// file writes a file of a node that does not exist.
func (p *planter) file(node int, path, text string) {
	p.t.Helper()
	path = p.Node(node).Path(path)
	p.undo(func(context.Context) error { return os.Remove(path) })
	p.must(errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
}

// nad makes a network.
func (p *planter) nad(name, config, resource string) {
	p.t.Helper()
	p.undo(func(ctx context.Context) error {
		_, err := p.Kubectl(ctx, "delete", "net-attach-def", name)
		return err
	})
	p.must(p.applyNAD(p.t.Context(), name, config, resource))
}

// macvlan makes a network of macvlan with these keys.
func (p *planter) macvlan(keys string) {
	p.t.Helper()
	p.nad("planted", `{"cniVersion": "1.0.0", "name": "planted", "type": "macvlan", "master": "ens2f0", `+keys+`}`, "")
}

// guest makes a pod on the first node.
func (p *planter) guest(g pod) {
	p.t.Helper()
	if g.networks == "" {
		g.networks = guestNetworks
	}
	g.name = "guest"
	p.undo(func(ctx context.Context) error { return p.end(ctx, g.name) })
	p.must(p.run(p.t.Context(), g))
}

// verbs makes char devices as those of RDMA in the guest's container, and sets its user's limit
// of locked memory.
func (p *planter) verbs(user, memlock int) {
	p.t.Helper()
	n, _ := p.record("guest", "net1")
	status, err := p.Kubectl(p.t.Context(), "get", "pod", "guest", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	p.must(err)
	id := strings.TrimPrefix(status, "containerd://")
	text, err := os.ReadFile(n.Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io/" + id + "/init.pid"))
	p.must(err)
	pid := string(text)
	script := `root=/proc/` + pid + `/root
mkdir -p $root/dev/infiniband
mknod $root/dev/infiniband/uverbs0 c 1 3
mknod $root/dev/infiniband/rdma_cm c 1 3
setpriv --reuid ` + strconv.Itoa(user) + ` --regid ` + strconv.Itoa(user) + ` --clear-groups prlimit --pid ` + pid + ` --memlock=` + strconv.Itoa(memlock)
	_, err = n.Exec(p.t.Context(), "sh", "-ec", script)
	p.must(err)
}

// stopAgent ends rail-agent of the first node, and the kubelet, which would start it again.
func (p *planter) stopAgent() {
	p.t.Helper()
	n := p.Node(0)
	p.undo(func(ctx context.Context) error {
		if err := n.StartKubelet(ctx); err != nil {
			return err
		}
		// A new pod: the kubelet waits before it starts a container again.
		_, err := p.Kubectl(ctx, "-n", agents, "delete", "pod", "--selector", agentSelector, "--field-selector", "spec.nodeName="+n.Name, "--grace-period=0", "--force")
		if err != nil {
			return err
		}
		_, err = p.Kubectl(ctx, "-n", agents, "rollout", "status", "daemonset/rail-agent", "--timeout", patience.String())
		return err
	})
	n.KillKubelet()
	names, err := filepath.Glob(n.Path("/proc/[0-9]*/comm"))
	p.must(err)
	ended := false
	for _, name := range names {
		if comm, err := os.ReadFile(name); err == nil && string(comm) == "rail-agent\n" {
			// A child that reads facts may have ended.
			_, err := n.Exec(p.t.Context(), "sh", "-c", `kill -KILL "$1" || ! test -e "/proc/$1"`, "sh", filepath.Base(filepath.Dir(name)))
			p.must(err)
			ended = true
		}
	}
	if !ended {
		p.t.Fatal("no rail-agent runs")
	}
}

const agentSelector = "app.kubernetes.io/name=rail-cni,app.kubernetes.io/component=agent"

// dead makes an attachment of the first node whose pod dies.
func (p *planter) dead() {
	p.t.Helper()
	n := p.Node(0)
	_, err := n.Exec(p.t.Context(), "ip", "netns", "add", "dies")
	p.must(err)
	add := n.Command(p.t.Context(), "env", "CNI_COMMAND=ADD", "CNI_CONTAINERID=dies", "CNI_IFNAME=net1", "CNI_NETNS=/var/run/netns/dies", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=dies", "/opt/cni/bin/host-device")
	add.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "dies", "type": "host-device", "device": "ens18np0"}`)
	if out, err := add.CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	_, err = n.Exec(p.t.Context(), "ip", "netns", "del", "dies")
	p.must(err)
}

// gpu adds a GPU to the PCI tree of the first node.
func (p *planter) gpu() {
	p.t.Helper()
	const at, bus = "/run/pci/devices/pci0000:50/0000:50:01.0/0000:51:00.0", "/run/pci/bus/0000:51:00.0"
	p.onHost(0, "mkdir -p "+at+"; cd "+at+"; echo 0x030200 >class; echo 0x10de >vendor; echo 0x2330 >device; echo 0 >numa_node; ln -s "+at+" "+bus,
		"rm "+bus+"; rm -r /run/pci/devices/pci0000:50")
}

// lease adds an address of a pod that does not exist to a pool.
func (p *planter) lease() {
	p.t.Helper()
	const pool = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools/10.60.0.0-24"
	set := func(ctx context.Context, entry any) error {
		patch := map[string]any{"spec": map[string]any{"allocations": map[string]any{"200": entry}}}
		code, answer, err := p.Admin().Patch(ctx, pool, controlplane.MergePatch, patch)
		if err == nil && code != 200 {
			err = fmt.Errorf("%d: %s", code, answer)
		}
		return err
	}
	p.undo(func(ctx context.Context) error { return set(ctx, nil) })
	p.must(set(p.t.Context(), map[string]any{"id": "gone", "podref": "default/gone", "ifname": "net1"}))
}

// nodeFile makes a node file of the first node with the rails of all and this line.
func (p *planter) nodeFile(more string) {
	p.t.Helper()
	p.file(0, "/etc/rail-cni/node.yaml", railsOfNodes+more+"\n")
}

// emptyPool is a device pool that selects nothing.
const emptyPool = `resources: {pools: [{name: rdma/hca_foreign, mode: exclusive, select: {vendors: ["dead"]}}]}`

// foreignPlugin starts a device plugin of another project, with the resource of emptyPool.
func (p *planter) foreignPlugin() {
	p.t.Helper()
	plugin, err := gpuplugin.Start(gpuplugin.Options{KubeletDir: p.Node(0).Path("/var/lib/kubelet"), Resource: "rdma/hca_foreign", Socket: "hca_foreign.sock"})
	p.must(err)
	p.undo(func(context.Context) error { return plugin.Close() })
}

func TestEachDefectIsFoundAndNothingElse(t *testing.T) {
	l := theLab(t)
	l.healthy(t)
	names := map[string]bool{}
	for _, d := range defects {
		if names[d.name] {
			t.Errorf("two defects are called %q", d.name)
		}
		names[d.name] = true
	}
	for _, d := range need.Sample(t, 4, defects) {
		t.Run(d.name, func(t *testing.T) {
			began := time.Now()
			p := &planter{lab: l, t: t}
			t.Cleanup(p.undoAll) // so that a failed test does not affect others
			d.plant(p)
			l.want(t, d.found, l.judgeCluster)
			if d.onNode != nil {
				l.want(t, d.onNode, l.judgeFirst)
			}
			p.undoAll()
			l.want(t, nil, l.judgeCluster)
			if d.onNode != nil {
				l.want(t, nil, l.judgeFirst)
			}
			t.Logf("%v", time.Since(began).Round(100*time.Millisecond))
		})
	}
}

func (l *lab) judgeFirst(ctx context.Context) (findings, []string, error) { return l.judgeNode(ctx, 0) }

// healthy fails the test if the doctor finds anything, in the cluster or on a node.
func (l *lab) healthy(t *testing.T) {
	t.Helper()
	l.want(t, nil, l.judgeCluster)
	for i := range l.Nodes() {
		l.want(t, nil, func(ctx context.Context) (findings, []string, error) { return l.judgeNode(ctx, i) })
	}
}

// settles bounds how long the cluster takes to show a defect, or its end.
// An agent that does not answer takes 25 s of it.
const settles = 90 * time.Second

// want fails the test unless the doctor finds these IDs, with these parts of findings, and no
// others. It asks again until the cluster has settled.
func (l *lab) want(t *testing.T, want map[string]string, judge func(context.Context) (findings, []string, error)) {
	t.Helper()
	for deadline := time.Now().Add(settles); ; time.Sleep(100 * time.Millisecond) {
		found, _, err := judge(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wrong := differences(want, found)
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%sfound:\n%s", wrong, found)
		}
	}
}

// differences returns how the findings differ from those that are wanted.
func differences(want map[string]string, found findings) string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if !slices.ContainsFunc(found[id], func(text string) bool { return strings.Contains(text, want[id]) }) {
			fmt.Fprintf(&b, "%s with %q is not found\n", id, want[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if _, wanted := want[id]; !wanted {
			fmt.Fprintf(&b, "%s is not wanted\n", id)
		}
	}
	return b.String()
}
