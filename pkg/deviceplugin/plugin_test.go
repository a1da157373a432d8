package deviceplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// node is a node with a kubelet and a device plugin. Its NICs are a fixture, because the tests of
// the inventory have real NICs.
type node struct {
	*peer
	options Options
	changed *component.Trigger

	mu        sync.Mutex
	inventory Inventory
	config    *resource.Config
	rails     *resource.Rails
	failed    error // what Inventory returns
	panics    int   // how often Inventory panics
	told      []component.Notice
	late      time.Duration // guards the clock
	scans     int
	running   int
}

// pciOf returns the PCI address of the fixture's NIC i.
func pciOf(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

// newNode returns a node with eight NICs as in eight, and eight GPUs, and the
// configuration of the node file.
func newNode(t *testing.T, file string) *node {
	t.Helper()
	n := &node{peer: newPeer(t), changed: component.NewTrigger()}
	for i := range 8 {
		n.inventory.GPUs = append(n.inventory.GPUs, GPU{PCI: fmt.Sprintf("0000:%02x:00.0", 0x80+i), UUID: fmt.Sprintf("GPU-%d", i)})
	}
	for i := range 8 {
		numa := i / 4
		distances := map[string]pcie.Distance{}
		for g, gpu := range n.inventory.GPUs {
			distances[gpu.PCI] = eight(g)[i].distances[0]
		}
		n.inventory.NICs = append(n.inventory.NICs, NIC{
			NIC: resource.NIC{
				PCI: pciOf(i), Names: []string{fmt.Sprint("ens", i)}, Vendor: "15b3", Device: "1021", Driver: "mlx5_core", LinkType: "ether",
				RDMA: []string{fmt.Sprint("mlx5_", i)}, NUMA: &numa, Path: []string{fmt.Sprint("pci", numa), fmt.Sprint("switch", i/2), fmt.Sprint("port", i)},
				CharDevices: []string{fmt.Sprint(rdmaDir, "/uverbs", i), fmt.Sprint(rdmaDir, "/umad", i)},
			},
			Link: LinkUp, Ports: []string{"ACTIVE"}, Distances: distances,
		})
	}
	dir := t.TempDir()
	dirs := notify.NewDirs(slog.New(slog.DiscardHandler))
	t.Cleanup(dirs.Close)
	n.options = Options{
		Config: func() (*resource.Config, *resource.Rails, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.scans++
			return n.config, n.rails, nil
		},
		Inventory: n.read, Changed: n.changed, KubeletDir: n.dir,
		DevInfoDir: filepath.Join(dir, "devinfo"), CDIDir: filepath.Join(dir, "cdi"), Root: filepath.Join(dir, "root"), Dirs: dirs,
		Notify: func(notice component.Notice) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.told = append(n.told, notice)
		},
		Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time {
			n.mu.Lock()
			defer n.mu.Unlock()
			return time.Now().Add(n.late)
		},
	}
	chars := filepath.Join(n.options.Root, rdmaDir) // links, because only root can make devices
	err := os.MkdirAll(chars, 0o755)
	for i := range 8 {
		err = errors.Join(err, os.Symlink(os.DevNull, fmt.Sprint(chars, "/uverbs", i)), os.Symlink(os.DevNull, fmt.Sprint(chars, "/umad", i)))
	}
	if err := errors.Join(err, os.Symlink(os.DevNull, chars+"/rdma_cm")); err != nil {
		t.Fatal(err)
	}
	n.configure(file)
	return n
}

func (n *node) read() (*Inventory, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.panics > 0 {
		n.panics--
		panic("inventory")
	}
	return &Inventory{NICs: slices.Clone(n.inventory.NICs), GPUs: n.inventory.GPUs}, n.failed
}

// configure replaces the node file's keys rails and resources.
func (n *node) configure(file string) {
	n.t.Helper()
	var parsed struct {
		Rails     *resource.Rails
		Resources *resource.Config
	}
	if err := yaml.Unmarshal([]byte(file), &parsed); err != nil {
		n.t.Fatal(err)
	}
	n.change(func() { n.config, n.rails = parsed.Resources, parsed.Rails })
}

// change changes the fixture, and waits until the device plugin, if it runs, has seen it.
func (n *node) change(f func()) {
	n.t.Helper()
	n.mu.Lock()
	f()
	before := n.scans
	n.mu.Unlock()
	await(n.t, "a look", func() bool {
		n.changed.Fire()
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.running == 0 || n.scans >= before+2 // the first one has ended
	})
}

// later moves the clock.
func (n *node) later(d time.Duration) { n.change(func() { n.late += d }) }

// run runs a device plugin until the returned function is called.
func (n *node) run() (p *Plugin, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	p = New(n.options)
	done := make(chan struct{})
	n.mu.Lock()
	n.running++
	n.mu.Unlock()
	go func() {
		p.Run(ctx)
		n.mu.Lock()
		n.running--
		n.mu.Unlock()
		close(done)
	}()
	end = func() {
		cancel()
		<-done
	}
	n.t.Cleanup(end)
	return p, end
}

// saw reports whether there was a notice with the reason and the text.
func (n *node) saw(reason, text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.told, func(t component.Notice) bool { return t.Reason == reason && strings.Contains(t.Message, text) })
}

// healthy returns the number of healthy devices, or -1 if the resource is not registered.
func (n *node) healthy(resource string) int {
	devices := n.health(resource)
	if devices == nil {
		return -1
	}
	count := 0
	for _, h := range devices {
		if h == "Healthy" {
			count++
		}
	}
	return count
}

func (n *node) awaitHealthy(resource string, want int) {
	n.t.Helper()
	await(n.t, fmt.Sprint(want, " healthy devices of ", resource), func() bool { return n.healthy(resource) == want })
}

// sockets returns the device plugin's sockets.
func (n *node) sockets() []string {
	var found []string
	for _, dir := range []string{kubeletdir.PluginsDir, kubeletdir.RegistryDir} {
		entries, _ := os.ReadDir(filepath.Join(n.dir, dir))
		for _, e := range entries {
			if resource.IsOwnSocket(e.Name()) {
				found = append(found, e.Name())
			}
		}
	}
	return found
}

const (
	exclusivePool = "resources: {pools: [{name: rail.io/hca, mode: exclusive, select: {vendors: ['15b3']}}]}"
	sharedPool    = "resources: {pools: [{name: rdma/hca_gpu, mode: shared, max: 8, select: {vendors: ['15b3']}}]}"
	railPools     = "rails: {auto: pciOrder, select: {vendors: ['15b3']}}\nresources: {pools: [{name: rail.io/hca, mode: perRail, select: {vendors: ['15b3']}}]}"
	hca           = "rail.io/hca"
)

func TestPoolsAreRegisteredAndEndWithTheirConfiguration(t *testing.T) {
	n := newNode(t, "{}")
	n.start()
	_, end := n.run()
	n.configure(railPools)
	for i := range 8 {
		n.awaitHealthy(fmt.Sprint(hca, "_rail_", i), 1)
	}
	n.configure(sharedPool)
	n.awaitHealthy("rdma/hca_gpu", 8)
	await(t, "the rails' end", func() bool { return n.healthy(hca+"_rail_0") == -1 && len(n.sockets()) == 1 })
	n.configure("{}")
	await(t, "the sockets' end", func() bool { return len(n.sockets()) == 0 })
	n.configure(exclusivePool)
	n.awaitHealthy(hca, 8)
	end()
	if left := n.sockets(); len(left) != 0 {
		t.Errorf("sockets are left: %v", left)
	}
}

func TestOnlyExclusivePoolsHaveNUMANodes(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.start()
	n.run()
	n.awaitHealthy(hca, 8)
	n.mu.Lock()
	numa := n.plugins[hca].numa
	n.mu.Unlock()
	if len(numa) != 8 || numa[pciOf(0)] != 0 || numa[pciOf(7)] != 1 {
		t.Errorf("NUMA nodes are %v", numa)
	}
	n.configure("resources: {pools: [{name: rail.io/hca, mode: exclusive, topology: false, select: {vendors: ['15b3']}}, {name: rdma/all, mode: shared, max: 3, select: {vendors: ['ffff', '15b3']}}], allowOverlap: true}")
	n.awaitHealthy("rdma/all", 3)
	await(t, "no NUMA node", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.plugins[hca].numa)+len(n.plugins["rdma/all"].numa) == 0
	})
}

// lend lends NICs to a pod of the namespace default.
func (n *node) lend(pod string, nics ...int) {
	n.change(func() {
		for _, i := range nics {
			n.inventory.NICs[i].Lent = &Lent{Namespace: "default", Pod: pod, ContainerID: "c-" + pod}
		}
	})
}

func (n *node) bringBack(nics ...int) {
	n.change(func() {
		for _, i := range nics {
			n.inventory.NICs[i].Lent = nil
		}
	})
}

func TestResourceIsRegisteredAgainAfterTheKubeletsRestart(t *testing.T) {
	for _, registry := range []bool{false, true} {
		t.Run(fmt.Sprint("registry=", registry), func(t *testing.T) {
			n := newNode(t, sharedPool)
			if registry {
				if err := errors.Join(os.RemoveAll(filepath.Join(n.dir, kubeletdir.PluginsDir)), os.Mkdir(filepath.Join(n.dir, kubeletdir.RegistryDir), 0o750)); err != nil {
					t.Fatal(err)
				}
				n.run()
				for range 3 {
					socket := filepath.Join(n.dir, kubeletdir.RegistryDir, "rail-cni.io-rdma-hca_gpu-reg.sock")
					await(t, "a socket", func() bool { return kubeletdir.Answers(socket) })
					made := modified(socket) // the number of an inode may be used again
					if err := n.watch(t.Context(), "rdma/hca_gpu", socket); err != nil {
						t.Fatal(err)
					}
					n.awaitHealthy("rdma/hca_gpu", 8)
					n.peer.stop()
					await(t, "another socket", func() bool { return kubeletdir.Answers(socket) && modified(socket) != made })
				}
				return
			}
			n.lend("a", 0, 1, 2, 3, 4, 5, 6, 7)
			n.run()
			for range 3 {
				n.start()
				n.awaitHealthy("rdma/hca_gpu", 8)
				n.peer.stop()
			}
			n.start()
			n.awaitHealthy("rdma/hca_gpu", 8)
			// The kubelet may drop only one of the two.
			n.mu.Lock()
			_ = n.plugins["rdma/hca_gpu"].conn.Close()
			n.mu.Unlock()
			await(t, "the stream's end", func() bool { n.peer.mu.Lock(); defer n.peer.mu.Unlock(); return n.registers > 4 })
			n.awaitHealthy("rdma/hca_gpu", 8)
		})
	}
}

// modified returns when the file was made or changed, or 0 if the file does not exist.
func modified(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}

func TestKilledInstancesSocketsAreRemovedAndThoseOfALivingOneAreNot(t *testing.T) {
	n := newNode(t, sharedPool)
	n.start()
	_, end := n.run()
	n.awaitHealthy("rdma/hca_gpu", 8)
	stale := filepath.Join(n.dir, kubeletdir.PluginsDir, resource.OwnSocket+"rdma-hca_gpu-00000000.sock")
	l, err := kubeletdir.Listen(stale)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // the file must stay
	living := n.sockets()
	n.run()
	await(t, "the stale socket's end", func() bool { return kubeletdir.InodeOf(stale) == kubeletdir.Inode{} })
	await(t, "two sockets", func() bool { return len(n.sockets()) == 2 })
	if !slices.Contains(n.sockets(), living[len(living)-1]) {
		t.Errorf("of %v are left %v", living, n.sockets())
	}
	end()
	n.awaitHealthy("rdma/hca_gpu", 8)
}

func TestInventoryThatCannotBeReadChangesNothing(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.change(func() { n.failed = errors.New("no sysfs") })
	n.start()
	n.run()
	await(t, "the notice", func() bool { return n.saw("DevicesNotRead", "no sysfs") })
	if got := n.healthy(hca); got != -1 {
		t.Errorf("a list was sent without an inventory: %d", got)
	}
	n.change(func() { n.failed = nil })
	n.awaitHealthy(hca, 8)
	n.change(func() { n.failed = errors.New("no sysfs again") })
	await(t, "the notice", func() bool { return n.saw("DevicesNotRead", "again") })
	if got := n.healthy(hca); got != 8 {
		t.Errorf("%d devices are left", got)
	}
}

func TestPanicIsContained(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.start()
	p, _ := n.run()
	n.awaitHealthy(hca, 8)
	n.change(func() { n.panics = 2 })
	if n.healthy(hca) != 8 {
		t.Error("the kubelet lost the devices")
	}
	await(t, "two panics to be counted", func() bool { return p.reporter.Panics() == 2 && n.saw("ComponentPanicked", "inventory") })
	if n.healthy(hca) != 8 {
		t.Error("the kubelet lost the devices after a panic")
	}
	n.mu.Lock()
	n.panics = 1
	n.mu.Unlock()
	if _, err := n.allocate(hca, pciOf(0)); err == nil || !strings.Contains(err.Error(), "see its log") {
		t.Error(err)
	}
	if _, err := n.allocate(hca, pciOf(0)); err != nil {
		t.Error(err)
	}
}

func TestHealthFollowsTheNICWithDelay(t *testing.T) {
	for name, c := range map[string]struct {
		break_ func(*NIC)
		lent   bool
		ill    bool
	}{
		"carrier":                {func(n *NIC) { n.Link, n.Ports = LinkDown, []string{"DOWN"} }, false, true},
		"carrier in the pod":     {func(n *NIC) { n.Link = LinkDown }, true, true},
		"RDMA port":              {func(n *NIC) { n.Ports = []string{"INIT"} }, false, true},
		"set down on the host":   {func(n *NIC) { n.Link, n.AdminDown, n.Ports = LinkDown, true, []string{"DOWN"} }, false, false},
		"set down by the pod":    {func(n *NIC) { n.Link, n.AdminDown, n.Ports = LinkDown, true, []string{"DOWN"} }, true, false},
		"state cannot be read":   {func(n *NIC) { n.Link, n.Ports = LinkUnknown, []string{""} }, true, false},
		"InfiniBand, set down":   {func(n *NIC) { n.LinkType, n.AdminDown, n.Ports = "infiniband", true, []string{"DOWN"} }, false, true},
		"InfiniBand, no netdev":  {func(n *NIC) { n.LinkType, n.Link = "infiniband", LinkUnknown }, false, false},
		"macvlans of pods":       {func(n *NIC) { n.Children = 2 }, false, true},
		"PCI function is hidden": {func(n *NIC) { n.Gone = true }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, exclusivePool)
			if c.lent {
				n.lend("a", 3)
				n.give("a", map[string][]string{hca: {pciOf(3)}})
			}
			n.start()
			n.run()
			n.awaitHealthy(hca, 8)
			before := n.inventory.NICs[3]
			n.change(func() { c.break_(&n.inventory.NICs[3]) })
			n.later(9 * time.Second)
			if got := n.healthy(hca); got != 8 {
				t.Errorf("after 9 s %d are healthy", got)
			}
			n.later(2 * time.Second)
			if !c.ill {
				if got := n.healthy(hca); got != 8 {
					t.Errorf("%d are healthy", got)
				}
				return
			}
			n.awaitHealthy(hca, 7)
			if !n.saw("DeviceUnhealthy", pciOf(3)) {
				t.Error("it is not told")
			}
			n.change(func() { n.inventory.NICs[3] = before })
			n.later(29 * time.Second)
			if got := n.healthy(hca); got != 7 {
				t.Errorf("29 s after the recovery %d are healthy", got)
			}
			n.later(2 * time.Second)
			n.awaitHealthy(hca, 8)
			await(t, "the notice", func() bool { return n.saw("DeviceHealthy", pciOf(3)) })
		})
	}
}

func TestNICThatIsGoneStaysInThePool(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.start()
	n.run()
	n.awaitHealthy(hca, 8)
	gone := n.inventory.NICs[7]
	n.change(func() { n.inventory.NICs = n.inventory.NICs[:7] })
	n.later(time.Second)
	n.later(11 * time.Second)
	n.awaitHealthy(hca, 7)
	if got := len(n.health(hca)); got != 8 {
		t.Errorf("%d devices are listed", got)
	}
	n.change(func() { n.inventory.NICs = append(n.inventory.NICs, gone) })
	n.later(time.Second)
	n.later(31 * time.Second)
	n.awaitHealthy(hca, 8)
}

// The node file also protects NICs. While the file has a mistake, the inventory does not know which
// NICs are protected.
func TestNodeFileWithAMistakeOpensNoNIC(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.inventory.NICs[7].Protected = "the node file does not permit it"
	var mistake error
	config := n.options.Config
	n.options.Config = func() (*resource.Config, *resource.Rails, error) {
		c, rails, _ := config()
		n.mu.Lock()
		defer n.mu.Unlock()
		if mistake != nil {
			return nil, nil, mistake
		}
		return c, rails, nil
	}
	n.start()
	n.run()
	n.awaitHealthy(hca, 7)
	n.change(func() { mistake, n.inventory.NICs[7].Protected = errors.New("line 3"), "" })
	await(t, "the notice", func() bool { return n.saw("DevicesNotRead", "line 3") })
	n.later(time.Second)
	if got := n.healthy(hca); got != 7 {
		t.Errorf("%d devices", got)
	}
	n.change(func() { mistake = nil })
	n.awaitHealthy(hca, 8)
}

// Another CNI plugin, such as upstream's host-device, moves the NIC, and no ledger has the NIC. In
// that case the inventory protects the NIC.
func TestNICThatAnotherCNIPluginHasStaysInThePool(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.give("granted", map[string][]string{hca: {pciOf(0)}})
	n.give("other", map[string][]string{"intel.com/x": {pciOf(1)}})
	n.start()
	n.run()
	n.awaitHealthy(hca, 8)
	n.change(func() { n.inventory.NICs[0].Protected, n.inventory.NICs[1].Protected = "moved", "moved" })
	n.awaitHealthy(hca, 7)
	if _, there := n.health(hca)[pciOf(0)]; !there {
		t.Errorf("the NIC that a pod got from the kubelet left the pool: %v", n.health(hca))
	}
	n.peer.mu.Lock()
	n.pods = nil
	n.peer.mu.Unlock()
	n.later(time.Second)
	n.awaitHealthy(hca, 6)
}

// The kubelet does not answer, so it is not known whether a container has the NIC. Without the NIC
// in the list the scheduler would count a device as allocated that is not there.
func TestNICThatAnotherCNIPluginHasStaysWhileTheKubeletDoesNotAnswer(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.inventory.NICs[1].Protected = "the node file does not permit it"
	n.give("granted", map[string][]string{hca: {pciOf(0)}})
	n.start()
	n.run()
	n.awaitHealthy(hca, 7)
	n.peer.mu.Lock()
	n.servers[1].Stop() // of PodResources
	n.pods = nil
	n.peer.mu.Unlock()
	n.change(func() { n.inventory.NICs[0].Protected = "moved" })
	n.later(time.Second)
	if got := n.health(hca); got[pciOf(0)] != "Healthy" || len(got) != 7 {
		t.Errorf("devices while the kubelet does not answer: %v", got)
	}
	n.serveResources()
	await(t, "the NIC leaves the pool, as no container has it", func() bool {
		n.changed.Fire()
		return n.healthy(hca) == 6
	})
}

func TestNICThatPassedTheKubeletIsNotOffered(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.give("granted", map[string][]string{hca: {pciOf(0)}})
	n.give("static", nil)
	n.start()
	p, _ := n.run()
	n.awaitHealthy(hca, 8)
	n.lend("granted", 0)
	n.lend("static", 1)
	n.later(settleTime)
	n.awaitHealthy(hca, 7)
	if n.health(hca)[pciOf(1)] == "Healthy" || !n.saw("DeviceUnhealthy", "lent to pod default/static") {
		t.Errorf("%v", n.health(hca))
	}
	counts := map[string]float64{}
	for _, c := range p.read().devices {
		counts[c.value] = c.count
	}
	if fmt.Sprint(counts) != "map[healthy:6 lent:1 outside:1 unhealthy:0]" {
		t.Errorf("metrics: %v", counts)
	}
	n.bringBack(1)
	n.awaitHealthy(hca, 8)
	// A pod that ends may lose its devices before its NIC is returned. The kubelet
	// forgets all pods for a while when it starts.
	n.peer.mu.Lock()
	n.pods = nil
	n.peer.mu.Unlock()
	n.later(30 * time.Second)
	if got := n.healthy(hca); got != 8 {
		t.Errorf("a kubelet that begins makes %d healthy", got)
	}
	n.later(31 * time.Second)
	n.later(settleTime)
	n.awaitHealthy(hca, 7)
	n.bringBack(0)
	n.awaitHealthy(hca, 8)
}

func TestSharedPoolHandsOutAllItsCharDevices(t *testing.T) {
	n := newNode(t, sharedPool)
	n.lend("a", 0, 1, 2, 3, 4, 5, 6, 7)
	n.start()
	n.run()
	n.awaitHealthy("rdma/hca_gpu", 8)
	if err := os.Remove(filepath.Join(n.options.Root, rdmaDir, "umad7")); err != nil {
		t.Fatal(err)
	}
	got, err := n.allocate("rdma/hca_gpu", "5")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetDevices()) != 16 || len(got.GetEnvs())+len(got.GetMounts())+len(got.GetAnnotations())+len(got.GetCdiDevices()) != 0 {
		t.Errorf("it gives %v", got)
	}
	for _, d := range got.GetDevices() {
		if d.GetPermissions() != "rwm" || d.GetHostPath() != d.GetContainerPath() {
			t.Errorf("%v", d)
		}
	}
	if err := os.RemoveAll(filepath.Join(n.options.Root, rdmaDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(n.options.Root, rdmaDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := n.allocate("rdma/hca_gpu", "5"); err == nil || !strings.Contains(err.Error(), "there is no /dev/infiniband/uverbs0") {
		t.Error(err)
	}
}

func TestExclusivePoolHandsOutWhatSRIOVDevicePluginDoes(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.change(func() { n.inventory.NICs[1].Parent = pciOf(0) })
	n.start()
	p, _ := n.run()
	n.awaitHealthy(hca, 8)
	got, err := n.allocate(hca, pciOf(6), pciOf(1))
	if err != nil {
		t.Fatal(err)
	}
	var devices []string
	for _, d := range got.GetDevices() {
		devices = append(devices, filepath.Base(d.GetHostPath())+" "+d.GetPermissions())
	}
	if fmt.Sprint(devices) != "[rdma_cm rw umad1 rw umad6 rw uverbs1 rw uverbs6 rw]" {
		t.Errorf("char devices are %v", devices)
	}
	var info, want any
	const text = `{"0000:11:00.0": {"generic": {"deviceID": "0000:11:00.0"}, "rdma": {"rdma_dev": "mlx5_1", "uverbs": "/dev/infiniband/uverbs1", "umad": "/dev/infiniband/umad1", "rdma_cm": "/dev/infiniband/rdma_cm"}},
		"0000:16:00.0": {"generic": {"deviceID": "0000:16:00.0"}, "rdma": {"rdma_dev": "mlx5_6", "uverbs": "/dev/infiniband/uverbs6", "umad": "/dev/infiniband/umad6", "rdma_cm": "/dev/infiniband/rdma_cm"}}}`
	if err := errors.Join(json.Unmarshal([]byte(got.GetEnvs()["PCIDEVICE_RAIL_IO_HCA_INFO"]), &info), json.Unmarshal([]byte(text), &want)); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(info) != fmt.Sprint(want) || got.GetEnvs()["PCIDEVICE_RAIL_IO_HCA"] != pciOf(1)+","+pciOf(6) || len(got.GetEnvs()) != 2 {
		t.Errorf("environment: %v", got.GetEnvs())
	}
	data, err := os.ReadFile(filepath.Join(n.options.DevInfoDir, "rail.io-hca-0000:11:00.0-device.json"))
	if want := `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:11:00.0","pf-pci-address":"0000:10:00.0","rdma-device":"mlx5_1"},"rail-cni.io/resource":"rail.io/hca"}` + "\n"; err != nil || string(data) != want {
		t.Errorf("device information: %s, %v", data, err)
	}
	if a := p.read().allocations; len(a) != 1 || a[0] != (resourceCount{hca, "unknown", 1}) {
		t.Errorf("allocations: %v", a)
	}
}

func TestDeviceThatCannotBeGivenIsNamed(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.lend("a", 2)
	n.give("a", map[string][]string{hca: {pciOf(2)}})
	n.change(func() { n.inventory.NICs[3].Ports = []string{"DOWN"} })
	n.start()
	n.run()
	n.awaitHealthy(hca, 7) // a NIC with a defect at the start is unhealthy at once
	for id, want := range map[string]string{
		"0000:ff:00.0": "no device 0000:ff:00.0",
		pciOf(3):       pciOf(3) + " is unhealthy: its RDMA port is DOWN",
		pciOf(2):       pciOf(2) + " is lent to pod default/a",
	} {
		if _, err := n.allocate(hca, id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", id, err)
		}
	}
	// The NIC of a pod that has just ended is about to return.
	go func() {
		time.Sleep(300 * time.Millisecond)
		n.bringBack(2)
	}()
	if _, err := n.allocate(hca, pciOf(2)); err != nil {
		t.Error(err)
	}
}

func TestDeviceInformationIsKeptWhileNeeded(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.start()
	_, end := n.run()
	n.awaitHealthy(hca, 8)
	if _, err := n.allocate(hca, pciOf(0), pciOf(1), pciOf(2)); err != nil {
		t.Fatal(err)
	}
	files := func() []string {
		entries, _ := os.ReadDir(n.options.DevInfoDir)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	foreign := "intel.com-x-0000:10:00.0-device.json"
	for _, name := range []string{foreign, "rail.io-hca-0000:17:00.0-device.json"} {
		if err := os.WriteFile(filepath.Join(n.options.DevInfoDir, name), []byte(`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:10:00.0"}}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.lend("a", 0)
	n.give("b", map[string][]string{hca: {pciOf(1)}})
	if len(files()) != 5 {
		t.Errorf("fresh files are removed: %v", files())
	}
	end() // as if killed: the next device plugin removes what is left
	n.run()
	n.later(2 * freshInfo)
	await(t, "the end of one file", func() bool { return len(files()) == 4 })
	n.bringBack(0)
	await(t, "the end of another", func() bool { return len(files()) == 3 })
	n.configure("{}")
	n.give("b", nil)
	n.later(time.Second)
	await(t, "the end of the last", func() bool { return len(files()) == 2 })
	if !slices.Contains(files(), foreign) {
		t.Errorf("files of others are removed: %v", files())
	}
}

func TestCDIDevicesReplaceCharDevices(t *testing.T) {
	n := newNode(t, strings.Replace(exclusivePool, "{pools", "{cdi: true, allowOverlap: true, pools", 1))
	n.start()
	n.run()
	n.awaitHealthy(hca, 8)
	got, err := n.allocate(hca, pciOf(4))
	if err != nil || len(got.GetDevices()) != 0 || len(got.GetCdiDevices()) != 1 || got.GetCdiDevices()[0].GetName() != "rail-cni.io/nic="+pciOf(4) {
		t.Fatal(got, err)
	}
	file := filepath.Join(n.options.CDIDir, cdiFile)
	spec := func() cdi.Spec {
		var s cdi.Spec
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := spec(); s.Kind != "rail-cni.io/nic" || len(s.Devices) != 8 || len(s.Devices[4].ContainerEdits.DeviceNodes) != 3 {
		t.Errorf("%+v", s)
	}
	// With numbers a runtime would not look at the node. Then a stale file would give a container
	// the device that has the numbers by that time.
	if text, err := os.ReadFile(file); err != nil || bytes.Contains(text, []byte(`"major"`)) || bytes.Contains(text, []byte(`"minor"`)) {
		t.Errorf("%v, %s", err, text)
	}
	made := modified(file)
	n.later(time.Second)
	if modified(file) != made {
		t.Error("it is written again without a change")
	}
	// A reboot empties /var/run, and a driver's reset changes numbers.
	if err := errors.Join(os.Remove(file), os.Remove(filepath.Join(n.options.Root, rdmaDir, "umad4"))); err != nil {
		t.Fatal(err)
	}
	if _, err := n.allocate(hca, pciOf(4)); err != nil || len(spec().Devices[4].ContainerEdits.DeviceNodes) != 2 {
		t.Errorf("%v, %+v", err, spec())
	}
	n.configure(strings.Replace(sharedPool, "{pools", "{cdi: true, pools", 1))
	n.awaitHealthy("rdma/hca_gpu", 8)
	got, err = n.allocate("rdma/hca_gpu", "0")
	if err != nil || len(got.GetCdiDevices()) != 1 || got.GetCdiDevices()[0].GetName() != "rail-cni.io/nic=pool-rdma-hca_gpu" || len(spec().Devices) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	n.configure(sharedPool)
	await(t, "the specification's end", func() bool { return kubeletdir.InodeOf(file) == kubeletdir.Inode{} })
}

// A container that starts again needs the CDI devices that it got.
func TestCDIDevicesStayWhileTheirNICsAreLent(t *testing.T) {
	n := newNode(t, strings.Replace(exclusivePool, "{pools", "{cdi: true, pools", 1))
	n.start()
	_, end := n.run()
	n.awaitHealthy(hca, 8)
	file := filepath.Join(n.options.CDIDir, cdiFile)
	devices := func() (names []string) {
		var s cdi.Spec
		data, err := os.ReadFile(file)
		if err == nil && json.Unmarshal(data, &s) == nil {
			for _, d := range s.Devices {
				names = append(names, d.Name)
			}
		}
		return names
	}
	n.give("a", map[string][]string{hca: {pciOf(3)}})
	n.lend("a", 3)
	chars := filepath.Join(n.options.Root, rdmaDir)
	for _, name := range []string{"uverbs3", "umad3"} { // the NIC's RDMA device is moving
		if err := os.Remove(filepath.Join(chars, name)); err != nil {
			t.Fatal(err)
		}
	}
	n.later(time.Second)
	if got := devices(); len(got) != 8 || !slices.Contains(got, pciOf(3)) {
		t.Errorf("while its RDMA device moves: %q", got)
	}
	n.configure("{}")
	await(t, "the end of the others", func() bool { return slices.Equal(devices(), []string{pciOf(3)}) })
	end() // an agent that starts with a mistake in the node file
	config := n.options.Config
	n.options.Config = func() (*resource.Config, *resource.Rails, error) {
		_, _, _ = config()
		return nil, nil, errors.New("line 3: field pool not found")
	}
	_, end = n.run()
	await(t, "the notice", func() bool { return n.saw("DevicesNotRead", "line 3") })
	n.later(time.Second)
	if got := devices(); !slices.Equal(got, []string{pciOf(3)}) {
		t.Errorf("with a mistake in the node file: %q", got)
	}
	end()
	n.options.Config = config
	n.run()
	n.configure(exclusivePool)
	n.bringBack(3)
	await(t, "the end of the file", func() bool { return kubeletdir.InodeOf(file) == kubeletdir.Inode{} })
}

func TestNICsAreChosenNearTheGPUsOfTheSameContainer(t *testing.T) {
	const gpus = "nvidia.com/gpu"
	all := make([]string, 8)
	for i := range all {
		all[i] = pciOf(i)
	}
	for name, c := range map[string]struct {
		pods  map[string]map[string][]string // what PodResources has
		saved map[string]map[string][]string // what the checkpoint has
		size  int
		want  []int
		level string
	}{
		"GPUs first": {
			map[string]map[string][]string{"old": {gpus: {"GPU-1"}, hca: {pciOf(1)}}, "new": {gpus: {"GPU-4", "GPU-7"}}},
			map[string]map[string][]string{"old": {gpus: {"GPU-1"}, hca: {pciOf(1)}}},
			2,
			[]int{4, 6},
			"PIX",
		},
		"GPUs of a pod that has ended": {
			map[string]map[string][]string{"new": {gpus: {"GPU-4"}}},
			map[string]map[string][]string{"ended": {gpus: {"GPU-4"}, hca: {pciOf(1)}}},
			1,
			[]int{4},
			"PIX",
		},
		"GPUs by PCI address, shared": {
			map[string]map[string][]string{"new": {"amd.com/gpu": {"0000:86:00.0::2"}}}, nil, 1, []int{6}, "PIX",
		},
		"NICs first": {
			map[string]map[string][]string{"old": {gpus: {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}}, "new": {}},
			map[string]map[string][]string{"old": {gpus: {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}}},
			2,
			[]int{4, 6},
			"unknown",
		},
		"two may be it": {
			map[string]map[string][]string{"one": {gpus: {"GPU-6"}}, "two": {gpus: {"GPU-7"}}}, nil, 1, []int{0}, "unknown",
		},
		"it has no GPU": {
			map[string]map[string][]string{"new": {"example.com/fpga": {"1"}}}, nil, 2, []int{0, 4}, "unknown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, exclusivePool)
			for pod, devices := range c.pods {
				n.give(pod, devices)
			}
			n.save(c.saved, nil)
			n.start()
			p, _ := n.run()
			n.awaitHealthy(hca, 8)
			var want []string
			for _, i := range c.want {
				want = append(want, pciOf(i))
			}
			got := n.prefer(hca, all, c.size)
			if !slices.Equal(got, want) {
				t.Errorf("it prefers %v, want %v", got, want)
			}
			if _, err := n.allocate(hca, got...); err != nil {
				t.Fatal(err)
			}
			if a := p.read().allocations; len(a) != 1 || a[0].value != c.level {
				t.Errorf("allocations: %v, want %s", a, c.level)
			}
		})
	}
}

func TestGPUsAreFoundWhenTheKubeletRefusesCallsForAMoment(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.give("new", map[string][]string{"nvidia.com/gpu": {"GPU-4"}})
	n.save(nil, nil)
	n.start()
	n.run()
	n.awaitHealthy(hca, 8)
	n.peer.mu.Lock()
	n.busy = 3
	n.peer.mu.Unlock()
	if got := n.prefer(hca, []string{pciOf(0), pciOf(4)}, 1); !slices.Equal(got, []string{pciOf(4)}) {
		t.Errorf("it prefers %v", got)
	}
}

func TestPreferenceNeverFails(t *testing.T) {
	n := newNode(t, exclusivePool)
	n.start()
	p, _ := n.run()
	n.awaitHealthy(hca, 8)
	if got := n.prefer(hca, []string{pciOf(7), pciOf(1)}, 1, pciOf(7)); !slices.Equal(got, []string{pciOf(7)}) {
		t.Errorf("must include: %v", got)
	}
	if got := n.prefer(hca, []string{"0000:ff:00.0", "0000:fe:00.0"}, 1); len(got) != 1 {
		t.Errorf("unknown IDs: %v", got)
	}
	n.lend("a", 0)
	if got := n.prefer(hca, []string{pciOf(0), pciOf(1)}, 1); !slices.Equal(got, []string{pciOf(1)}) {
		t.Errorf("a NIC that is not yet returned is preferred: %v", got)
	}
	if err := os.WriteFile(filepath.Join(n.dir, kubeletdir.CheckpointFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.give("new", map[string][]string{"nvidia.com/gpu": {"GPU-7"}})
	if got := n.prefer(hca, []string{pciOf(1), pciOf(7)}, 1); !slices.Equal(got, []string{pciOf(1)}) {
		t.Errorf("without a checkpoint: %v", got)
	}
	n.change(func() { n.failed = errors.New("no sysfs") })
	if got := n.prefer(hca, []string{pciOf(2), pciOf(1)}, 1); len(got) != 1 {
		t.Errorf("without an inventory: %v", got)
	}
	p.mu.Lock()
	p.inventory = nil
	p.mu.Unlock()
	if got := n.prefer(hca, []string{pciOf(2), pciOf(1), pciOf(3)}, 2, pciOf(3)); !slices.Equal(got, []string{pciOf(1), pciOf(3)}) || p.reporter.Panics() != 1 {
		t.Errorf("after a panic: %v", got)
	}
}

func TestResourceOfAnotherDevicePluginIsNotRegistered(t *testing.T) {
	for name, c := range map[string]struct{ socket, resource string }{
		"by the registry":                {kubeletdir.RegistryDir + "/x.sock", "rdma/hca_gpu"},
		"named after the resource":       {kubeletdir.PluginsDir + "/hca_gpu.sock", ""},
		"named after it with its prefix": {kubeletdir.PluginsDir + "/rdma_hca_gpu.sock", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, sharedPool)
			n.start()
			end := n.serveOther(c.socket, c.resource)
			n.serveOther(kubeletdir.RegistryDir+"/gpu.sock", "nvidia.com/gpu")
			n.serveOther(kubeletdir.PluginsDir+"/fpga.sock", "")
			p, _ := n.run()
			await(t, "the notice", func() bool {
				return n.saw("ResourceTaken", filepath.Base(c.socket)) && n.saw("ResourceTaken", "railctl migrate devices")
			})
			problem := func() bool {
				return slices.Contains(p.read().problems, resourceCount{"rdma/hca_gpu", "Taken", 1})
			}
			if n.healthy("rdma/hca_gpu") != -1 || !problem() {
				t.Errorf("it is registered, or not in metrics: %v", p.read())
			}
			end()
			n.awaitHealthy("rdma/hca_gpu", 8)
			await(t, "the notice", func() bool { return n.saw("ResourceServed", "rdma/hca_gpu") && !problem() })
		})
	}
}

func TestOtherDevicePluginsAloneAreNoObstacle(t *testing.T) {
	n := newNode(t, sharedPool)
	n.start()
	n.serveOther(kubeletdir.RegistryDir+"/gpu.sock", "nvidia.com/gpu")
	n.serveOther(kubeletdir.PluginsDir+"/hca_gpu2.sock", "")
	stale := filepath.Join(n.dir, kubeletdir.PluginsDir, "hca_gpu.sock")
	l, err := kubeletdir.Listen(stale)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	// The kubelet remembers devices of the plugin that was removed.
	n.save(nil, map[string][]string{"rdma/hca_gpu": {"0", "1", "100"}})
	n.run()
	n.awaitHealthy("rdma/hca_gpu", 8)
	if n.saw("ResourceTaken", "") {
		t.Error("it is taken")
	}
}

func TestDevicePluginThatRegistersLaterIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		socket string
		wait   time.Duration
	}{"named after the resource": {"/hca_gpu.sock", 0}, "with any name": {"/x.sock", foreignCheck}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, sharedPool)
			n.start()
			n.run()
			n.awaitHealthy("rdma/hca_gpu", 8)
			n.serveOther(kubeletdir.PluginsDir+"/unrelated.sock", "", "0", "1")
			n.save(nil, map[string][]string{"rdma/hca_gpu": {"0", "17"}})
			end := n.serveOther(kubeletdir.PluginsDir+c.socket, "", "0", "17", "18") // wakes it
			await(t, "the notice", func() bool {
				if c.wait > 0 {
					n.later(c.wait)
					n.save(nil, map[string][]string{"rdma/hca_gpu": {"0", "17"}}) // wakes it
				}
				return n.saw("ResourceTaken", c.socket)
			})
			if n.healthy("rdma/hca_gpu") != 8 {
				t.Error("our end would end the other one's registration as well")
			}
			// The kubelet's checkpoint still has the devices of the other plugin.
			n.peer.mu.Lock()
			before := n.registers
			n.peer.mu.Unlock()
			end() // wakes it
			await(t, "the registration", func() bool { n.peer.mu.Lock(); defer n.peer.mu.Unlock(); return n.registers > before })
			n.awaitHealthy("rdma/hca_gpu", 8)
		})
	}
}

func TestProblemsAreToldOnceAndWhenSolved(t *testing.T) {
	n := newNode(t, "resources: {pools: [{name: rdma/none, mode: shared, max: 2, select: {ifNames: [eth9]}}]}")
	n.start()
	p, _ := n.run()
	await(t, "the notice", func() bool { return n.saw("ResourceProblem", "eth9") })
	if m := p.read().problems; len(m) == 0 || m[0].resource != "rdma/none" || m[0].value != resource.NothingSelected {
		t.Errorf("%+v", m)
	}
	await(t, "an empty list", func() bool { return n.healthy("rdma/none") == 0 })
	n.change(func() { n.inventory.NICs[0].Names = append(n.inventory.NICs[0].Names, "eth9") })
	n.awaitHealthy("rdma/none", 2)
	await(t, "the notice", func() bool { return n.saw("ResourceProblemSolved", "eth9") })
	count := 0
	n.mu.Lock()
	for _, notice := range n.told {
		if notice.Reason == "ResourceProblem" {
			count++
		}
	}
	n.mu.Unlock()
	if count != 1 {
		t.Errorf("told %d times", count)
	}
}

func TestNamesOfVariablesAndSockets(t *testing.T) {
	for name, want := range map[string]string{
		"nvidia.com/hca_rail_0": "PCIDEVICE_NVIDIA_COM_HCA_RAIL_0", "rdma/a-b.c": "PCIDEVICE_RDMA_A_B_C",
	} {
		if got := envName(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	long := strings.Repeat("a", 200)
	a, b := resource.FileName("x.io/"+long+"1"), resource.FileName("x.io/"+long+"2")
	if a == b || len(a) > 48 || resource.FileName("rdma/hca_gpu") != "rdma-hca_gpu" {
		t.Error(a, b)
	}
}

// TestInfiniBandContainersCannotManageTheFabric also has a NIC in two pools, and only one of the
// pools has umad. The NIC has only one CDI device.
func TestInfiniBandContainersCannotManageTheFabric(t *testing.T) {
	const (
		two = "resources: {cdi: %s, allowOverlap: true, pools: [{name: rail.io/hca, mode: exclusive, umad: %s, select: {rdma: true}}, {name: rail.io/other, mode: exclusive, select: {ifNames: [ens2]}}]}"
		one = "resources: {pools: [{name: rail.io/hca, mode: shared, max: 20, umad: %s, select: {ifNames: [ens1]}}]}"
	)
	for name, c := range map[string]struct{ pools, want string }{
		"exclusive":            {fmt.Sprintf(two, "false", "false"), "uverbs1"},
		"exclusive, umad":      {fmt.Sprintf(two, "false", "true"), "umad1 uverbs1"},
		"shared":               {fmt.Sprintf(one, "false"), "uverbs1"},
		"shared, umad":         {fmt.Sprintf(one, "true"), "umad1 uverbs1"},
		"exclusive, CDI":       {fmt.Sprintf(two, "true", "false"), "uverbs1"},
		"exclusive, umad, CDI": {fmt.Sprintf(two, "true", "true"), "umad1 uverbs1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, c.pools)
			n.change(func() {
				for i := range n.inventory.NICs {
					n.inventory.NICs[i].LinkType = resource.InfiniBand
				}
			})
			n.start()
			n.run()
			id, devicesOfPool := pciOf(1), 8
			if strings.Contains(c.pools, "shared") {
				id, devicesOfPool = "3", 20
			}
			n.awaitHealthy(hca, devicesOfPool)
			got, err := n.allocate(hca, id)
			if err != nil {
				t.Fatal(err)
			}
			var devices []string
			for _, d := range got.GetDevices() {
				devices = append(devices, filepath.Base(d.GetHostPath()))
			}
			spec := &cdi.Spec{}
			if strings.Contains(name, "CDI") {
				text, err := os.ReadFile(filepath.Join(n.options.CDIDir, cdiFile))
				if err := errors.Join(err, json.Unmarshal(text, spec)); err != nil {
					t.Fatal(err)
				}
			}
			for _, d := range spec.Devices {
				for _, node := range d.ContainerEdits.DeviceNodes {
					if d.Name == pciOf(2) && strings.Contains(node.Path, "umad") {
						t.Errorf("%s is in a pool without umad, and has %s", d.Name, node.Path)
					}
					if d.Name == id {
						devices = append(devices, filepath.Base(node.Path))
					}
				}
			}
			devices = slices.DeleteFunc(devices, func(d string) bool { return d == "rdma_cm" })
			slices.Sort(devices)
			if have := strings.Join(devices, " "); have != c.want {
				t.Errorf("it has %s, not %s", have, c.want)
			}
		})
	}
}
