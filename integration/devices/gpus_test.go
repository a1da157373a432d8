package devices

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
	"github.com/rail-cni/rail-cni/integration/gpuplugin"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// orders notes, for the pod that is being admitted, whether it had NICs already when the
// kubelet allocated its GPUs.
type orders struct {
	sync.Mutex
	pod      string
	nicFirst bool
	asked    bool
	err      error
}

func (o *orders) next(pod string) {
	o.Lock()
	defer o.Unlock()
	o.pod, o.nicFirst, o.asked = pod, false, false
}

// TestNICsAreNearThePodsGPUs makes pods with random numbers of GPUs and NICs, beside
// others that come and go, and compares the distances with the best that was possible.
//
// The kubelet allocates a container's resources in the order of a map. The device plugin
// knows the GPUs of the containers that got them first: about four of five.
func TestNICsAreNearThePodsGPUs(t *testing.T) {
	const resource = "rdma/near"
	l := theLab(t)
	kubelet := l.kubelet(t)
	var o orders
	cards := gpuplugin.GPUs(nicplugin.Addresses(nicplugin.GPUs)...)
	plugin, err := gpuplugin.Start(gpuplugin.Options{
		KubeletDir: l.kubeletDir(), GPUs: cards,
		Allocated: func(ctx context.Context, _ []string) {
			o.Lock()
			defer o.Unlock()
			ids, err := held(ctx, kubelet, o.pod)
			o.asked, o.nicFirst, o.err = true, len(ids[resource]) > 0, errors.Join(o.err, err)
		},
	})
	must(t, err)
	defer plugin.Close()
	l.start(t, nicplugin.NodeFile, fmt.Sprintf("resources: {pools: [{name: %s, mode: exclusive, select: {rdma: true}}]}", resource))
	l.awaitAllocatable(t, resource, len(nicplugin.NICs))
	l.awaitAllocatable(t, gpuplugin.Resource, len(cards))

	tree, address := fixtureTree(t), map[string]string{}
	for _, gpu := range cards {
		address[gpu.UUID] = gpu.PCI
	}
	seed := need.Seed()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	living := map[string]allocation{} // by pod
	var known, unknown tally
	for i := range rounds(40, 200) {
		wanted := map[string]int{gpuplugin.Resource: 1 + random.IntN(4), resource: 1 + random.IntN(4)}
		for _, name := range crowd(random, living, wanted, resource) {
			l.deleteOne(t, name, true)
			awaitHeld(t, kubelet, name, map[string]int{})
			delete(living, name)
		}
		free := freeNICs(living)
		name := fmt.Sprintf("near-%d", i)
		o.next(name)
		l.create(t, pod{name: name, resources: wanted, admitted: true})
		ids := awaitHeld(t, kubelet, name, wanted)
		got := allocation{gpus: ids[gpuplugin.Resource], nics: ids[resource]}
		for k, uuid := range got.gpus {
			got.gpus[k] = address[uuid]
		}
		living[name] = got
		o.Lock()
		nicFirst, asked, err := o.nicFirst, o.asked, o.err
		o.Unlock()
		if err != nil || !asked {
			t.Fatalf("%s: the GPU plugin was asked: %v, %v", name, asked, err)
		}
		cost, best := minSum(tree, got.gpus, got.nics), math.MaxInt
		for _, nics := range subsets(free, len(got.nics)) {
			best = min(best, minSum(tree, got.gpus, nics))
		}
		which := &known
		if nicFirst {
			which = &unknown
		} else if cost != best {
			t.Logf("%s: GPUs %v got the NICs %v of %v: a sum of %d, and %d was possible", name, got.gpus, got.nics, free, cost, best)
		}
		which.add(cost, best)
	}
	t.Logf("GPUs before NICs: %v", &known)
	t.Logf("NICs before GPUs: %v", &unknown)
	// By chance a short run may have one order only.
	if known.count == 0 || unknown.count == 0 && need.Full() {
		t.Error("the kubelet allocated in one order only")
	}
	if float64(known.best) < 0.99*float64(known.count) {
		t.Error("fewer than 99 % of the allocations with known GPUs have the least possible distance")
	}
}

// allocation is what a pod has, by PCI address.
type allocation struct{ gpus, nics []string }

// tally counts allocations.
type tally struct{ count, best, sum, bestSum int }

func (a *tally) add(cost, best int) {
	a.count++
	a.sum += cost
	a.bestSum += best
	if cost == best {
		a.best++
	}
}

func (a *tally) String() string {
	if a.count == 0 {
		return "none"
	}
	n := float64(a.count)
	return fmt.Sprintf("%d allocations, %d (%.1f %%) with the least sum of distances; mean sum %.2f, least %.2f",
		a.count, a.best, 100*float64(a.best)/n, float64(a.sum)/n, float64(a.bestSum)/n)
}

// crowd returns pods to delete, at random, so that there is room for another.
func crowd(random *rand.Rand, living map[string]allocation, wanted map[string]int, resource string) (doomed []string) {
	names := make([]string, 0, len(living))
	gpus, nics := len(nicplugin.GPUs), len(nicplugin.NICs)
	for name, a := range living {
		names = append(names, name)
		gpus, nics = gpus-len(a.gpus), nics-len(a.nics)
	}
	slices.Sort(names) // the map's order is not of the seed
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		if gpus >= wanted[gpuplugin.Resource] && nics >= wanted[resource] && random.IntN(4) > 0 {
			break
		}
		gpus, nics = gpus+len(living[name].gpus), nics+len(living[name].nics)
		doomed = append(doomed, name)
	}
	return doomed
}

// freeNICs returns the addresses of the NICs that no pod has.
func freeNICs(living map[string]allocation) (free []string) {
	for _, nic := range nicplugin.Addresses(nicplugin.NICs) {
		taken := false
		for _, a := range living {
			taken = taken || slices.Contains(a.nics, nic)
		}
		if !taken {
			free = append(free, nic)
		}
	}
	return free
}

// fixtureTree returns the PCI tree of the fixture.
func fixtureTree(t testing.TB) *pcie.Tree {
	t.Helper()
	sys := t.TempDir()
	must(t, nicplugin.WriteSysfs(sys))
	tree, err := pcie.Read(sys)
	must(t, err)
	return tree
}

// minSum returns the least sum of the distances of the NICs to a GPU each, where no GPU
// has more NICs than there must be. It tries all ways.
func minSum(tree *pcie.Tree, gpus, nics []string) int {
	each := (len(nics) + len(gpus) - 1) / len(gpus)
	used := make([]int, len(gpus))
	var try func(i int) int
	try = func(i int) int {
		if i == len(nics) {
			return 0
		}
		best := math.MaxInt / 2
		for g := range gpus {
			if used[g] < each {
				used[g]++
				best = min(best, int(tree.Distance(nics[i], gpus[g]))+try(i+1))
				used[g]--
			}
		}
		return best
	}
	return try(0)
}

// subsets returns all ways to choose n of the list.
func subsets(list []string, n int) (all [][]string) {
	if n == 0 {
		return [][]string{nil}
	}
	for i := range list {
		for _, rest := range subsets(list[i+1:], n-1) {
			all = append(all, append([]string{list[i]}, rest...))
		}
	}
	return all
}
