package devices

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin"
)

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// TestPodWhoseRailIsTakenIsPending: the scheduler, and not a failed ADD, keeps the ninth
// pod from a node whose NIC of that rail is lent, and lets it go when the NIC is home.
func TestPodWhoseRailIsTakenIsPending(t *testing.T) {
	const resource = "rdma/roce"
	rail := func(i int) string { return fmt.Sprintf("%s_rail_%d", resource, i) }
	l := theLab(t)
	l.start(t, nicplugin.NodeFile, fmt.Sprintf("rails: {auto: pciOrder}\nresources: {pools: [{name: %s, mode: perRail, select: {rails: all}}]}", resource))
	for i := range nicplugin.NICs {
		l.awaitAllocatable(t, rail(i), 1)
	}
	name := func(i int) string { return fmt.Sprintf("rail-%d", i) }
	for i := range nicplugin.NICs {
		l.create(t, pod{name: name(i), resources: map[string]int{rail(i): 1}})
	}
	kubelet := l.kubelet(t)
	for i, f := range nicplugin.NICs {
		l.running(t, name(i))
		if ids := awaitHeld(t, kubelet, name(i), map[string]int{rail(i): 1}); ids[rail(i)][0] != f.Address {
			t.Errorf("%s has %v, not %s", name(i), ids, f.Address)
		}
	}

	const ninth, taken = "ninth", 3
	l.create(t, pod{name: ninth, resources: map[string]int{rail(taken): 1}})
	await(t, "the scheduler's word", func() error {
		p, err := l.pod(ninth)
		if err == nil && !p.unschedulable() {
			err = fmt.Errorf("%+v", p.Status)
		}
		return err
	})
	await(t, "the event", func() error {
		var events struct {
			Items []struct{ Reason, Message string }
		}
		if err := l.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+ninth, &events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "FailedScheduling" && containsAll(e.Message, rail(taken)) {
				t.Log(e.Message)
				return nil
			}
		}
		return fmt.Errorf("%+v", events.Items)
	})
	// The scheduler may try it again when another pod ends. When the one after that runs, it has.
	l.create(t, pod{name: "ends"})
	l.running(t, "ends")
	l.delete(t, "ends")
	l.create(t, pod{name: "after"})
	l.running(t, "after")
	p, err := l.pod(ninth)
	must(t, err)
	if !p.unschedulable() || len(p.Status.ContainerStatuses) > 0 {
		t.Fatalf("the ninth pod got to the node: %+v", p.Status)
	}
	deleted := time.Now()
	l.delete(t, name(taken))
	gone := time.Since(deleted)
	took := l.running(t, ninth)
	t.Logf("the pod before it was gone %v after its deletion", gone.Round(time.Millisecond))
	timing.Check(t, "the ninth pod's start after the release", took, 5*time.Second)
}

// unschedulable reports whether the scheduler has found no node for the pod.
func (p *podObject) unschedulable() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" {
			return p.Status.Phase == "Pending" && c.Status == "False" && c.Reason == "Unschedulable"
		}
	}
	return false
}

// healthDelay is the goal for a pod's status, beside the time that the configuration gives. The
// kubelet asks and tells every second.
const healthDelay = 3 * time.Second

// TestHealthOfANICIsInThePodsStatus sets a NIC's carrier off and on.
func TestHealthOfANICIsInThePodsStatus(t *testing.T) {
	const resource = "rdma/health"
	down, up := time.Second, 2*time.Second
	if rounds(0, 1) == 1 {
		down, up = 10*time.Second, 30*time.Second // what applies by default
	}
	l := theLab(t)
	p := l.start(t, nicplugin.NodeFile,
		fmt.Sprintf("resources: {pools: [{name: %s, mode: exclusive, select: {ifNames: [%s, %s]}}], health: {down: %v, up: %v}}",
			resource, nicplugin.NICName(0), nicplugin.NICName(5), down, up))
	l.awaitAllocatable(t, resource, 2)
	l.create(t, pod{name: "ill", resources: map[string]int{resource: 2}})
	l.running(t, "ill")
	id := nicplugin.NICs[5].Address
	is := func(health string) func() error {
		return func() error {
			now, err := l.pod("ill")
			if err == nil && now.health(id) != health {
				text, _ := json.Marshal(now.Status.ContainerStatuses)
				err = fmt.Errorf("%s", text)
			}
			return err
		}
	}
	await(t, "healthy", is("Healthy"))
	change := func(what, health string, after time.Duration, change func()) {
		began := time.Now()
		change()
		p.Show()
		await(t, what, is(health))
		took := time.Since(began)
		if took < after {
			t.Errorf("%s: %s after %v, and not after %v", what, health, took, after)
		}
		timing.Check(t, fmt.Sprintf("%s until %s, beside the %v that are configured,", what, health, after), took-after, healthDelay)
	}
	change("no carrier", "Unhealthy", down, func() { p.State.Down[5] = true })
	if now, err := l.pod("ill"); err != nil || now.health(nicplugin.NICs[0].Address) != "Healthy" {
		t.Errorf("the other NIC is %q (%v)", now.health(nicplugin.NICs[0].Address), err)
	}
	l.awaitAllocatable(t, resource, 1)
	change("a carrier", "Healthy", up, func() { delete(p.State.Down, 5) })
	l.awaitAllocatable(t, resource, 2)
}

// TestNICThatAStaticNetworkLentIsNotOffered: a pod has the NIC that did not get it from
// the kubelet.
func TestNICThatAStaticNetworkLentIsNotOffered(t *testing.T) {
	const resource = "rdma/static"
	l := theLab(t)
	p := l.start(t, nicplugin.NodeFile, fmt.Sprintf("resources: {pools: [{name: %s, mode: exclusive, select: {rdma: true}}]}", resource))
	l.awaitAllocatable(t, resource, 8)
	// Of a NIC that the kubelet allocated to its pod nothing changes.
	l.create(t, pod{name: "asked", resources: map[string]int{resource: 1}})
	l.running(t, "asked")
	id := awaitHeld(t, l.kubelet(t), "asked", map[string]int{resource: 1})[resource][0]
	samples := l.watchAllocatable(t, resource)
	l.create(t, pod{name: "took"})
	l.running(t, "took")
	var other int
	for i, f := range nicplugin.NICs {
		if f.Address == id {
			p.State.Lent[i] = deviceLent("asked")
		} else {
			other = i
		}
	}
	p.State.Lent[other] = deviceLent("took")
	p.Show()
	lent := l.awaitAllocatable(t, resource, 7)
	l.awaitReports(t, 2)
	now, err := l.pod("asked")
	must(t, err)
	if now.health(id) != "Healthy" {
		t.Errorf("the NIC that the kubelet allocated is %q", now.health(id))
	}
	delete(p.State.Lent, other)
	p.Show()
	t.Logf("one less after %v, offered again after %v", lent.Round(time.Millisecond), l.awaitAllocatable(t, resource, 8).Round(time.Millisecond))
	var counts []int
	for _, s := range samples() {
		counts = append(counts, s.count)
	}
	// The last may be on its way to the watch.
	if counts = slices.Compact(counts); !slices.Equal(counts, []int{8, 7, 8}) && !slices.Equal(counts, []int{8, 7}) {
		t.Errorf("the node had %v devices", counts)
	}
}

// deviceLent returns the loan of a NIC to a pod of the namespace "default".
func deviceLent(pod string) deviceplugin.Lent {
	return deviceplugin.Lent{Namespace: "default", Pod: pod, ContainerID: "c"}
}
