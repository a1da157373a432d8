package nri

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/gpuplugin"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// eightRails are the NICs of the lab of this test.
var eightRails = []string{"ens1", "ens2", "ens3", "ens4", "ens5", "ens6", "ens7", "ens8"}

const (
	railsResource = "rail.test/rails" // the resource of the network allRails
	allRails      = "rails"
	agentAccount  = "/run/agent.kubeconfig" // on the node
)

// shapes are the numbers of rails of the pods that run at the same time.
var shapes = [][]int{{5, 3}, {2, 2, 2, 2}, {8}, {1, 1, 1, 1, 1, 1, 1, 1}, {4, 4}, {3, 3, 2}}

// TestAllSayTheSameOfAPodsRails compares what the environment, rails.json in the container,
// the annotation, "railctl pod", "railctl env" and "railctl show" say of a pod's rails, and
// the interfaces in the pod, for 100 pods. Half of the pods run with rail-agent alone. They get
// no variables, because the veths have no RDMA devices. The other pods get variables for
// invented RDMA devices from the stand-in, and all else from rail-agent.
func TestAllSayTheSameOfAPodsRails(t *testing.T) {
	l := newRailsLab(t)
	count := need.Either(8, 100)
	c := &comparison{lab: l}
	t.Run("rail-agent", func(t *testing.T) {
		l.startPublisher(t, nriSocket)
		c.pods(t, "agent", count/2)
	})
	t.Run("stand-in", func(t *testing.T) {
		l.startPublisher(t, "off")
		l.startStandIn(t)
		c.standIn = true
		c.pods(t, "rdma", count-count/2)
	})
	t.Logf("%d pods with %d rails, of which %d set variables themselves: %d differences", c.compared, c.rails, c.users, c.differences)
	if c.compared != count {
		t.Errorf("%d pods are compared, not %d", c.compared, count)
	}
}

// newRailsLab starts a cluster with one node of eight rails. The network allRails has all
// of them, by a device plugin; a network for each rail has its NIC by name.
func newRailsLab(t *testing.T) *lab {
	t.Helper()
	need.Cluster(t)
	c, err := cluster.New(context.Background(), scratch.Dir(t), // t.TempDir is too long for sockets
		cluster.Options{
			Nodes: 1, Rails: eightRails, Hardware: true, Multus: cluster.Thin, Plugins: cluster.OurPlugins(testnet.Bin(t)), NRI: true,
			KubeletConfig: "registryPullQPS: 0",
		})
	need.NoError(t, err)
	l := &lab{c, c.Node(0)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.Report())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	addresses, err := l.node.PCI(t.Context())
	must(t, err)
	file := "publish: {annotation: true}\nrails:\n"
	var offered []gpuplugin.GPU
	for i, address := range addresses {
		file += fmt.Sprintf("- {id: %d, pci: %q}\n", i, address)
		offered = append(offered, gpuplugin.GPU{PCI: address, UUID: address, NUMA: -1})
		l.network(t, eightRails[i], map[string]any{"device": eightRails[i], "rail": i}, fmt.Sprintf("10.%d.0.0/24", 100+i), "")
	}
	l.network(t, allRails, map[string]any{"rail": "auto"}, "10.${rail}.0.0/24", railsResource)
	must(t, os.WriteFile(l.node.Path("/etc/rail-cni/node.yaml"), []byte(file), 0o644))
	_, err = l.node.Exec(t.Context(), "sh", "-ec", strings.Replace(devices, "1 2 3", "1 2 3 4 5 6 7 8", 1))
	must(t, err)

	plugin, err := gpuplugin.Start(gpuplugin.Options{KubeletDir: l.node.Path("/var/lib/kubelet"), Resource: railsResource, GPUs: offered})
	must(t, err)
	t.Cleanup(func() { _ = plugin.Close() })
	role, err := os.ReadFile("../../deployments/kustomize/annotation/role.yaml")
	must(t, err)
	must(t, l.Apply(t.Context(), role))
	account, err := l.ServiceAccount(t.Context(), "kube-system", "rail-cni-agent")
	must(t, err)
	_, err = l.Plane.Kubeconfig(account, controlplane.Form{Path: l.node.Path(agentAccount), Server: "https://" + controlplane.ServiceAddress})
	must(t, err)
	return l
}

// network makes a network of host-device. All of its rails have one host part, of a block of the
// node, if it has a resource.
func (l *lab) network(t testing.TB, name string, conf map[string]any, addresses, resource string) {
	t.Helper()
	conf["cniVersion"], conf["name"], conf["type"] = "1.0.0", name, "host-device"
	ipam := map[string]any{"type": "whereabouts", "range": addresses}
	if resource != "" {
		ipam["sameHost"], ipam["block_size"] = true, 16
	}
	conf["ipam"] = ipam
	config, err := json.Marshal(conf)
	must(t, err)
	meta := map[string]any{"name": name, "namespace": "default"}
	if resource != "" {
		meta["annotations"] = map[string]any{"k8s.v1.cni.cncf.io/resourceName": resource}
	}
	object, err := json.Marshal(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": meta, "spec": map[string]any{"config": string(config)},
	})
	must(t, err)
	must(t, l.Apply(t.Context(), object))
}

// startPublisher starts rail-agent with the rights to write annotations. It ends with the
// test.
func (l *lab) startPublisher(t testing.TB, socket string) {
	t.Helper()
	command := fmt.Sprintf(`exec "$0" run --kubelet-dir off --kubeconfig %s --node %s --nri-socket %s 2>>/run/publisher.log`, agentAccount, l.node.Name, socket)
	args := []string{"sh", "-c", command, filepath.Join(testnet.Bin(t), "rail-agent")}
	must(t, l.node.StartDaemon(t.Context(), "rail-agent", nil, args, func(ctx context.Context) error {
		if socket == nriSocket {
			return l.connected(ctx)
		}
		_, err := l.metric(ctx, "rail_cni_nri_connected")
		if err != nil && !strings.Contains(err.Error(), "no metric") {
			return err
		}
		return nil
	}))
	t.Cleanup(func() { l.node.KillDaemon("rail-agent") })
}

// comparison compares pods, and counts.
type comparison struct {
	*lab
	standIn bool

	compared, rails, users, differences int
}

// trial is a pod that is compared.
type trial struct {
	pod
	rails int
	user  map[string]string // the variables that the pod sets itself
}

// pods runs pods, as many at a time as there are rails for, and compares them.
func (c *comparison) pods(t *testing.T, prefix string, count int) {
	for round, made := 0, 0; made < count; round++ {
		shape := shapes[round%len(shapes)]
		shape = shape[:min(len(shape), count-made)]
		var trials []trial
		first := 0 // the rail of the next pod
		for i, rails := range shape {
			names := eightRails[first : first+rails]
			first += rails
			p := trial{pod: pod{name: fmt.Sprintf("%s-%d-%d", prefix, round, i), networks: strings.Join(names, ",")}, rails: rails}
			if round%2 == 1 {
				p.networks = strings.Join(slices.Repeat([]string{allRails}, rails), ",")
				p.limits = map[string]int{railsResource: rails}
			}
			if (made+i)%3 == 1 {
				p.user = map[string]string{"NCCL_IB_HCA": "^mlx5_9", "NVSHMEM_HCA_LIST": "", "NCCL_DEBUG": "INFO"}
				p.env = p.user
				c.users++
			}
			trials = append(trials, p)
		}
		made += len(trials)
		c.round(t, trials)
	}
}

// round runs the pods at the same time.
func (c *comparison) round(t *testing.T, trials []trial) {
	for _, p := range trials {
		c.create(t, p.pod)
	}
	for i := range trials {
		c.running(t, trials[i].name)
	}
	for i := range trials {
		c.compare(t, &trials[i])
	}
	for _, p := range trials {
		c.delete(t, p.name)
	}
}

// maxLag is how long rail-agent may take to see what no message reports, such as the
// state of a link (docs/reference/rails-json.md).
const maxLag = 40 * time.Second

// compare compares one pod.
func (c *comparison) compare(t *testing.T, p *trial) {
	t.Helper()
	var told []string
	for began := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		if told = c.differ(t, p); len(told) == 0 || time.Since(began) > maxLag {
			break
		}
	}
	c.compared, c.rails, c.differences = c.compared+1, c.rails+p.rails, c.differences+len(told)
	for _, text := range told {
		t.Errorf("%s: %s", p.name, text)
	}
}

// differ returns the differences between what all say of a pod.
func (c *comparison) differ(t *testing.T, p *trial) (told []string) {
	t.Helper()
	differs := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	env, file := c.inside(t, p.name)
	rails := &railinfo.Rails{}
	if err := json.Unmarshal(file, rails); err != nil {
		return []string{fmt.Sprintf("rails.json: %v: %.200s", err, file)}
	}
	if len(rails.Rails) != p.rails || rails.Pod.Namespace+"/"+rails.Pod.Name != "default/"+p.name {
		differs("rails.json is of %d rails of %+v", len(rails.Rails), rails.Pod)
	}
	if again := rails.JSON(); !bytes.Equal(again, file) { // all that it says is compared below
		differs("rails.json has keys that are not compared:\n%s\nnot\n%s", file, again)
	}
	if got := c.annotation(t, p.name); got != string(rails.Compact()) {
		differs("the annotation is\n%s\nand rails.json\n%s", got, rails.Compact())
	}

	var pod railinfo.Rails
	c.railctl(t, &pod, "pod", "default/"+p.name, "-o", "json")
	pod.Generation = rails.Generation
	if !reflect.DeepEqual(&pod, rails) {
		differs("railctl pod says\n%s\nand rails.json\n%s", pod.JSON(), file)
	}
	var variables map[string]string
	c.railctl(t, &variables, "env", "default/"+p.name, "--format", "json")
	if len(variables) != 0 {
		differs("railctl env has %v without an RDMA device", variables)
	}
	c.differingEnv(p, rails, env, differs)
	c.differingNICs(t, p, rails, differs)
	return told
}

// inside returns the environment of the pod's container, and its rails.json.
func (c *comparison) inside(t *testing.T, name string) (env map[string]string, file []byte) {
	t.Helper()
	out, err := c.Exec(t.Context(), name, "/bin/sh", "-c", `tr '\0' '\n' </proc/1/environ; echo; cat `+railinfo.MountPoint+`/rails.json`)
	must(t, err)
	variables, text, _ := strings.Cut(out, "\n\n")
	env = map[string]string{}
	for line := range strings.SplitSeq(variables, "\n") {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	return env, []byte(text)
}

func (c *comparison) annotation(t *testing.T, name string) string {
	t.Helper()
	var object struct {
		Metadata struct{ Annotations map[string]string }
	}
	_, answer, err := c.Admin().Get(t.Context(), pods+"/"+name)
	must(t, errors.Join(err, json.Unmarshal(answer, &object)))
	return object.Metadata.Annotations[railinfo.RailsAnnotation]
}

// railctl runs railctl on the node, and reads its JSON.
func (c *comparison) railctl(t *testing.T, into any, args ...string) {
	t.Helper()
	out, err := c.node.Exec(t.Context(), append([]string{filepath.Join(testnet.Bin(t), "railctl")}, args...)...)
	must(t, err)
	must(t, json.Unmarshal([]byte(out), into))
}

// differingEnv compares the environment: the pod's own variables, and those that follow
// from the rails in the order of rails.json, if these have the RDMA devices of the stand-in.
func (c *comparison) differingEnv(p *trial, rails *railinfo.Rails, env map[string]string, differs func(string, ...any)) {
	want := map[string]string{}
	if c.standIn {
		var ports []string
		for _, r := range rails.Rails {
			ports = append(ports, "mlx5_"+strings.TrimPrefix(r.IfName, "net")+":1")
		}
		list := strings.Join(ports, ",")
		want = map[string]string{"NCCL_IB_HCA": "=" + list, "UCX_NET_DEVICES": list, "NVSHMEM_HCA_LIST": list}
		var set []string
		for _, name := range []string{"NCCL_IB_HCA", "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST"} {
			if _, own := p.user[name]; !own {
				set = append(set, name)
			}
		}
		want[railinfo.ListVar] = strings.Join(set, ",")
	}
	for name, value := range p.user {
		want[name] = value
	}
	for _, name := range []string{"NCCL_IB_HCA", "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST", "NCCL_DEBUG", railinfo.ListVar} {
		value, is := env[name]
		if wanted, expected := want[name]; value != wanted || is != expected {
			differs("%s is %q (%v), not %q (%v)", name, value, is, wanted, expected)
		}
	}
	for name := range env {
		if _, expected := want[name]; !expected && (strings.HasPrefix(name, "NCCL_") || strings.HasPrefix(name, "UCX_") || strings.HasPrefix(name, "NVSHMEM_") || strings.HasPrefix(name, "RAIL_CNI_")) {
			differs("%s=%s is in the environment", name, env[name])
		}
	}
}

// netdev is what "ip -json address" says of an interface.
type netdev struct {
	IfName   string
	Address  string
	MTU      int
	AddrInfo []struct {
		Local     string
		PrefixLen int
		Scope     string
	} `json:"addr_info"`
}

// addresses returns the addresses but the link-local one, which pods are not told of.
func (n *netdev) addresses() (list []string) {
	for _, a := range n.AddrInfo {
		if a.Scope != "link" {
			list = append(list, fmt.Sprintf("%s/%d", a.Local, a.PrefixLen))
		}
	}
	slices.Sort(list)
	return list
}

// differingNICs compares the rails with "railctl show", and with the interfaces in the pod.
func (c *comparison) differingNICs(t *testing.T, p *trial, rails *railinfo.Rails, differs func(string, ...any)) {
	t.Helper()
	var shown []inventory.Attachment
	c.railctl(t, &shown, "show", "-o", "json")
	shown = slices.DeleteFunc(shown, func(a inventory.Attachment) bool { return a.Pod != "default/"+p.name })
	if len(shown) != p.rails {
		differs("railctl show has %d attachments", len(shown))
		return
	}
	out, err := c.node.Exec(t.Context(), "nsenter", "--net="+shown[0].PodNetns, "ip", "-json", "address")
	must(t, err)
	var inPod []netdev
	must(t, json.Unmarshal([]byte(out), &inPod))
	inPod = slices.DeleteFunc(inPod, func(n netdev) bool { return !strings.HasPrefix(n.IfName, "net") })
	if len(inPod) != p.rails {
		differs("%d interfaces are in the pod: %+v", len(inPod), inPod)
	}
	hosts := map[string]bool{} // the last numbers of the addresses
	for _, r := range rails.Rails {
		i := slices.IndexFunc(shown, func(a inventory.Attachment) bool { return a.IfName == r.IfName })
		k := slices.IndexFunc(inPod, func(n netdev) bool { return n.IfName == r.IfName })
		if i < 0 || k < 0 || r.Rail == nil || len(r.Addresses) == 0 {
			differs("%s is only in rails.json, or has no rail or no address: %+v", r.IfName, r)
			continue
		}
		a, n := &shown[i], &inPod[k]
		if a.NIC != eightRails[*r.Rail] || a.MAC != r.MAC || a.MTU != r.MTU || a.Link != r.State || !slices.Equal(a.Addresses, r.Addresses[:1]) {
			differs("%s: railctl show says %+v, rails.json %+v", r.IfName, *a, r)
		}
		if n.Address != r.MAC || n.MTU != r.MTU || !slices.Equal(n.addresses(), slices.Sorted(slices.Values(r.Addresses))) {
			differs("%s: it is %+v, rails.json says %+v", r.IfName, *n, r)
		}
		network := 100 + *r.Rail
		if p.limits != nil {
			network = *r.Rail
		}
		host, is := strings.CutPrefix(r.Addresses[0], fmt.Sprintf("10.%d.0.", network))
		if !is {
			differs("rail %d has the address %s", *r.Rail, r.Addresses[0])
		}
		hosts[host] = true
	}
	if p.limits != nil && len(hosts) != 1 {
		differs("the rails have the host parts %v", hosts)
	}
}
