package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
	"github.com/rail-cni/rail-cni/integration/gpuplugin"
	"github.com/rail-cni/rail-cni/integration/need"
)

// usersShared returns the configuration of k8s-rdma-shared-dev-plugin that the users'
// cluster runs. Its resource is rdma/hca_gpu, with eight devices.
func usersShared(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/shared-device-plugin.json")
	must(t, err)
	return string(text)
}

// rounds returns how often a test does something: few times in make test.
func rounds(few, many int) int {
	if need.Full() {
		return many
	}
	return few
}

// window is a time in which the kubelet may have fewer devices.
type window struct{ from, until time.Time }

// TestSharedPoolKeepsItsSizeWhileItsNICsAreLent kills the device plugin and the kubelet
// while all NICs of the pool are in pods, and watches what the scheduler counts on.
//
// The kubelet takes all devices of a plugin for unhealthy from the plugin's end until it
// has registered again, and says so if its node's status is due at that time. No plugin
// can prevent that. So there may be fewer devices then, and never otherwise.
func TestSharedPoolKeepsItsSizeWhileItsNICsAreLent(t *testing.T) {
	const resource, count = "rdma/hca_gpu", 8
	l := theLab(t)
	p := l.start(t, nicplugin.SharedFile, usersShared(t))
	t.Logf("%s: %d after %v", resource, count, l.awaitAllocatable(t, resource, count).Round(time.Millisecond))
	holder := pod{name: "holder", resources: map[string]int{resource: count}}
	l.create(t, holder)
	l.running(t, holder.name)
	for i := range nicplugin.NICs {
		p.State.Lent[i] = deviceLent(holder.name)
	}
	p.Show()
	kubelet := l.kubelet(t)
	before := awaitHeld(t, kubelet, holder.name, holder.resources)

	samples := l.watchAllocatable(t, resource)
	time.Sleep(2 * statusPeriod)
	var windows []window
	outage := func(what string, kill, start func()) {
		var lengths []time.Duration
		for range rounds(3, 20) {
			w := window{from: time.Now()}
			kill()
			start()
			awaitOffered(t, kubelet, resource, count)
			w.until = time.Now()
			windows, lengths = append(windows, w), append(lengths, w.until.Sub(w.from))
			l.awaitAllocatable(t, resource, count)
			time.Sleep(statusPeriod) // so that windows do not follow each other at once
		}
		slices.Sort(lengths)
		t.Logf("%s was killed %d times; the kubelet had %d devices again after %v (median), %v (longest)",
			what, len(lengths), count, lengths[len(lengths)/2].Round(time.Millisecond), lengths[len(lengths)-1].Round(time.Millisecond))
	}
	outage("the device plugin", func() {
		p.Kill()
		awaitOffered(t, kubelet, resource, 0) // the kubelet has noticed
	}, p.Start)
	outage("the kubelet", l.node.KillKubelet, func() { must(t, l.node.StartKubelet(t.Context())) })

	seen, fewer := samples(), 0
	for _, s := range seen {
		if s.count == count {
			continue
		}
		fewer++
		// A status of the window may be written when it is over, and stands until the next.
		if !slices.ContainsFunc(windows, func(w window) bool { return s.at.After(w.from) && s.at.Before(w.until.Add(2*statusPeriod)) }) {
			t.Errorf("%d devices at %v, while the device plugin and the kubelet ran", s.count, s.at)
		}
	}
	t.Logf("%d states of the node, %d of them in windows with fewer than %d devices", len(seen), fewer, count)
	if len(seen) == 0 || seen[len(seen)-1].count != count {
		t.Errorf("the last of %d states of the node has not %d devices", len(seen), count)
	}
	now, err := l.pod(holder.name)
	must(t, err)
	after := awaitHeld(t, kubelet, holder.name, holder.resources)
	if now.Status.Phase != "Running" || !slices.Equal(before[resource], after[resource]) {
		t.Errorf("the pod is %s and has %v, before %v", now.Status.Phase, after, before)
	}
}

// TestNewerDevicePluginTakesOver starts a second one beside the first, as a rolling update
// with maxSurge does, and then ends the first.
func TestNewerDevicePluginTakesOver(t *testing.T) {
	const resource = "rdma/surge"
	config := fmt.Sprintf("resources: {pools: [{name: %s, mode: exclusive, select: {rdma: true}}]}", resource)
	l := theLab(t)
	kubelet := l.kubelet(t)
	first := l.start(t, nicplugin.NodeFile, config)
	awaitOffered(t, kubelet, resource, 8)
	second := l.start(t, nicplugin.NodeFile, config)
	time.Sleep(time.Second)
	first.Kill()
	began := time.Now()
	// The kubelet lets go of the second, too, when the connection to the first ends.
	time.Sleep(200 * time.Millisecond)
	awaitOffered(t, kubelet, resource, 8)
	t.Logf("8 devices %v after the end of the first", time.Since(began).Round(time.Millisecond))
	_ = second
	l.create(t, pod{name: "surge", resources: map[string]int{resource: 1}})
	l.running(t, "surge")
}

// TestRegistrationByTheKubeletsRegistry has no directory device-plugins, as where that is
// not mounted into the agent's container.
func TestRegistrationByTheKubeletsRegistry(t *testing.T) {
	const resource = "rdma/registry"
	l := theLab(t)
	kubelet, dir := l.kubelet(t), t.TempDir()
	for _, name := range []string{"plugins_registry", "pod-resources"} {
		must(t, os.Symlink(filepath.Join(l.kubeletDir(), name), filepath.Join(dir, name)))
	}
	p := nicplugin.New(t, dir, l.node.Path(""), nicplugin.NodeFile, fmt.Sprintf("resources: {pools: [{name: %s, mode: exclusive, select: {rdma: true}}]}", resource))
	for range 3 {
		p.Start()
		took := awaitOffered(t, kubelet, resource, 8)
		t.Logf("8 devices after %v", took.Round(time.Millisecond))
		p.Kill()
		awaitOffered(t, kubelet, resource, 0)
	}
}

// TestResourceOfAnotherDevicePluginIsLeftAlone starts another one that has the resource,
// before rail-agent's or after it.
func TestResourceOfAnotherDevicePluginIsLeftAlone(t *testing.T) {
	l := theLab(t)
	kubelet := l.kubelet(t)
	for _, other := range []struct {
		name   string
		socket string // "" = named after the resource, as usual
		first  bool
	}{{"before", "", true}, {"after", "", false}, {"after-unknown", "x.sock", false}} {
		if other.socket != "" && !need.Full() {
			continue // it is found after half a minute
		}
		t.Run(other.name, func(t *testing.T) {
			resource := "rdma/foreign-" + other.name
			p := nicplugin.New(t, l.kubeletDir(), l.node.Path(""), nicplugin.NodeFile,
				fmt.Sprintf("resources: {pools: [{name: %s, mode: shared, max: 5, select: {rdma: true}}]}", resource))
			if !other.first {
				p.Start()
				awaitOffered(t, kubelet, resource, 5)
			}
			plugin, err := gpuplugin.Start(gpuplugin.Options{
				KubeletDir: l.kubeletDir(), Resource: resource, Socket: other.socket, GPUs: gpuplugin.GPUs("a", "b", "c"),
			})
			must(t, err)
			defer plugin.Close()
			awaitOffered(t, kubelet, resource, 3)
			if other.first {
				p.Start()
			}
			told := await(t, "a notice about the other plugin", func() error {
				for _, n := range p.Notices() {
					if n.Warning && strings.Contains(n.Message, resource) {
						t.Logf("%s: %s: %s", n.Reason, n.Summary, n.Message)
						return nil
					}
				}
				return fmt.Errorf("there is none: %+v", p.Notices())
			})
			for range 20 {
				if n, err := offered(t.Context(), kubelet, resource); err != nil || n != 3 {
					t.Fatalf("the kubelet has %d devices (%v), not the other plugin's 3", n, err)
				}
				time.Sleep(pause)
			}
			must(t, plugin.Close())
			took := awaitOffered(t, kubelet, resource, 5)
			t.Logf("told after %v; registered %v after the other plugin's end", told.Round(time.Millisecond), took.Round(time.Millisecond))
		})
	}
}
