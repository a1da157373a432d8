package collect

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/devices"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/objects"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// pods returns the living pods that hold a NIC or have a child interface on one, sorted by name and
// without their facts. A pod whose ADD or DEL is under way is left out, because its interface is
// not complete.
func (c *collector) pods(lives func(*ledger.Record) bool) []fact.Pod {
	var found []fact.Pod
	for _, r := range c.held {
		known := slices.ContainsFunc(found, func(p fact.Pod) bool { return r.Pod != nil && p.Namespace == r.Pod.Namespace && p.Name == r.Pod.Name })
		if r.Pod == nil || known || r.Phase != ledger.Lent || !lives(r) {
			continue
		}
		found = append(found, fact.Pod{Namespace: r.Pod.Namespace, Name: r.Pod.Name, UID: r.Pod.UID})
	}
	return found
}

// recordsOf returns the records of the pod's newest container. A pod can have records of several
// containers while an old container ends.
func (c *collector) recordsOf(p *fact.Pod) []*ledger.Record {
	isOfPod := func(r *ledger.Record) bool {
		return r.Pod != nil && r.Pod.Namespace == p.Namespace && r.Pod.Name == p.Name && r.Phase == ledger.Lent
	}
	var found []*ledger.Record
	for _, r := range c.held {
		if isOfPod(r) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil
	}
	newest := found[len(found)-1].ContainerID
	return slices.DeleteFunc(found, func(r *ledger.Record) bool { return r.ContainerID != newest })
}

// ofPod reads the facts about a pod.
func (c *collector) ofPod(ctx context.Context, to *fact.Pod) {
	records := c.recordsOf(to)
	if len(records) == 0 {
		return
	}
	in := "the netns " + records[0].Netns.Path
	if c.noPods != nil {
		to.Interfaces, to.Devices = fact.Failed[[]fact.Interface](in, c.noPods), fact.Failed[[]fact.Port](in, c.noPods)
		to.Containers, to.GPUs = fact.Failed[[]fact.Container](in, c.noPods), fact.Failed[[]string](in, c.noPods)
		return
	}
	c.ofPodFiles(ctx, to, records[0])
	take(ctx, c, &to.Status, c.objects.Source("pods "+to.Namespace+"/"+to.Name), objects.AnswerTime, func(ctx context.Context) (string, error) {
		return c.networkStatus(ctx, to.Namespace+"/"+to.Name)
	})
	take(ctx, c, &to.Interfaces, in, localTime, func(context.Context) ([]fact.Interface, error) { return devices.Interfaces(records) })
	take(ctx, c, &to.Devices, in, localTime, func(context.Context) ([]fact.Port, error) { return devices.Ports(records) })
}

// ofPodFiles reads the facts that are in files of a pod.
func (c *collector) ofPodFiles(ctx context.Context, to *fact.Pod, r *ledger.Record) {
	// The name of a source contains the pod, so that a pod whose files hang does not affect the
	// facts about other pods.
	key := to.Namespace + "/" + to.Name
	containers, gpus := filepath.Join(c.Proc, "*/ns/net")+" of "+key, filepath.Join(c.Proc, "*/root/dev")+" of "+key
	if c.noFiles != nil {
		to.Containers, to.GPUs = fact.Failed[[]fact.Container](containers, c.noFiles), fact.Failed[[]string](gpus, c.noFiles)
		return
	}
	take(ctx, c, &to.Containers, containers, localTime, func(context.Context) ([]fact.Container, error) { return c.procs.Containers(r) })
	take(ctx, c, &to.GPUs, gpus, localTime, func(context.Context) ([]string, error) { return c.procs.GPUsOf(r) })
}

// networkStatus returns the annotation network-status of a pod. It returns "" if the pod has none.
func (c *collector) networkStatus(_ context.Context, pod string) (string, error) {
	if c.alone() {
		return "", nil
	}
	pods, err := c.podsByAPI()
	if err != nil {
		return "", err
	}
	p, ok := pods[pod]
	if !ok {
		return "", objects.ErrNoPod
	}
	return p.NetworkStatus()
}
