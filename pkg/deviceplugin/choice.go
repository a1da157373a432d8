package deviceplugin

import (
	"cmp"
	"math"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// candidate is a NIC that the kubelet may allocate.
type candidate struct {
	id string
	// switchOf names what is directly above the NIC on PCI Express: a switch, or the host bridge.
	// NICs with the same switchOf share that switch or bridge.
	switchOf string
	numa     int // -1 if the node is not known
	// distances has the distance to each GPU of the container, in the order of the GPUs. It is
	// empty if the GPUs are not known.
	distances []pcie.Distance
	// freeGPUs is the number of GPUs at the same switch that no container has.
	freeGPUs int
}

// choose returns the IDs of size candidates, which include the IDs in must. If the GPUs are known,
// it returns the candidates with the smallest sum of distances, where each GPU gets one NIC. If
// there are more NICs than GPUs, all GPUs get the same number of NICs. If the GPUs are not known,
// choose spreads the NICs over switches and NUMA nodes. Of equal choices it prefers the candidates
// that come first. It returns fewer IDs if there are too few candidates.
func choose(candidates []candidate, must []string, size int) []string {
	if size <= 0 {
		return nil
	}
	if len(candidates) > 0 && len(candidates[0].distances) > 0 {
		return nearest(candidates, must, size)
	}
	return spread(candidates, must, size)
}

// spread returns size candidates, which it chooses one after another: near a GPU that is free, then
// at the switch with the fewest chosen NICs, then on the NUMA node with the fewest chosen NICs.
func spread(candidates []candidate, must []string, size int) []string {
	var chosen []string
	onSwitch, onNUMA := map[string]int{}, map[int]int{}
	left := slices.Clone(candidates)
	take := func(i int) {
		chosen = append(chosen, left[i].id)
		onSwitch[left[i].switchOf]++
		onNUMA[left[i].numa]++
		left = slices.Delete(left, i, i+1)
	}
	for i := 0; i < len(left) && len(chosen) < size; {
		if slices.Contains(must, left[i].id) {
			take(i)
		} else {
			i++
		}
	}
	for len(chosen) < size && len(left) > 0 {
		best := 0
		for i := range left {
			a, b := &left[i], &left[best]
			without := func(c *candidate) int {
				if c.freeGPUs > onSwitch[c.switchOf] {
					return 0
				}
				return 1
			}
			if cmp.Or(cmp.Compare(without(a), without(b)), cmp.Compare(onSwitch[a.switchOf], onSwitch[b.switchOf]),
				cmp.Compare(onNUMA[a.numa], onNUMA[b.numa])) < 0 {
				best = i
			}
		}
		take(best)
	}
	return chosen
}

// The parts of the cost of a pair. A candidate that must be chosen outweighs all distances, and one
// step of distance outweighs all places in the list.
const (
	costDistance = 1 << 20
	costMust     = -1 << 40
)

// pairs is an assignment of NICs to GPUs.
type pairs struct {
	nicOf []int // by place of a GPU; -1 if the place has no NIC
	gpuOf []int // by candidate: its place, or -1 if it is not chosen
	cost  [][]int64
}

// nearest returns the candidates in the cheapest assignment of NICs to GPUs.
func nearest(candidates []candidate, must []string, size int) []string {
	gpus := len(candidates[0].distances)
	each := (size + gpus - 1) / gpus // NICs of one GPU
	places := gpus * each
	p := &pairs{nicOf: slices.Repeat([]int{-1}, places), gpuOf: slices.Repeat([]int{-1}, len(candidates))}
	for i, c := range candidates {
		row := make([]int64, places)
		for place := range row {
			row[place] = int64(c.distances[place%gpus])*costDistance + int64(i)
			if slices.Contains(must, c.id) {
				row[place] += costMust
			}
		}
		p.cost = append(p.cost, row)
	}
	for range min(size, len(candidates)) {
		p.augment()
	}
	var chosen []string
	for i, c := range candidates {
		if p.gpuOf[i] >= 0 {
			chosen = append(chosen, c.id)
		}
	}
	return chosen
}

// augment adds one pair, by the cheapest path that alternates between pairs of the assignment and
// other pairs (successive shortest paths; Bellman-Ford, because costs are negative on the way
// back). An assignment that has the least cost for its size still has the least cost afterwards.
func (p *pairs) augment() {
	const unreachable = math.MaxInt64 / 4
	toPlace := slices.Repeat([]int64{unreachable}, len(p.nicOf)) // least cost to give the place a new NIC
	from := slices.Repeat([]int{-1}, len(p.nicOf))               // the NIC that the place then gets
	toNIC := make([]int64, len(p.gpuOf))
	for i, place := range p.gpuOf {
		if place >= 0 {
			toNIC[i] = unreachable // reachable only by leaving its place
		}
	}
	for changed := true; changed; {
		changed = false
		for i := range p.gpuOf {
			if toNIC[i] >= unreachable {
				continue
			}
			for place := range p.nicOf {
				if p.gpuOf[i] == place {
					continue
				}
				if c := toNIC[i] + p.cost[i][place]; c < toPlace[place] {
					toPlace[place], from[place], changed = c, i, true
					if held := p.nicOf[place]; held >= 0 {
						toNIC[held] = c - p.cost[held][place]
					}
				}
			}
		}
	}
	end := -1
	for place, held := range p.nicOf {
		if held < 0 && from[place] >= 0 && (end < 0 || toPlace[place] < toPlace[end]) {
			end = place
		}
	}
	for place := end; place >= 0; {
		i := from[place]
		left := p.gpuOf[i]
		p.nicOf[place], p.gpuOf[i] = i, place
		place = left
	}
}

// level returns the largest distance in the best assignment of the NICs to the GPUs, in which all
// NICs are used. ok is false if the GPUs are not known.
func level(nics []candidate) (pcie.Distance, bool) {
	if len(nics) == 0 || len(nics[0].distances) == 0 {
		return 0, false
	}
	gpus := len(nics[0].distances)
	each := (len(nics) + gpus - 1) / gpus
	p := &pairs{nicOf: slices.Repeat([]int{-1}, gpus*each), gpuOf: slices.Repeat([]int{-1}, len(nics))}
	for _, c := range nics {
		row := make([]int64, gpus*each)
		for place := range row {
			row[place] = int64(c.distances[place%gpus])
		}
		p.cost = append(p.cost, row)
	}
	worst := pcie.PIX
	for range nics {
		p.augment()
	}
	for i, c := range nics {
		worst = max(worst, c.distances[p.gpuOf[i]%gpus])
	}
	return worst, true
}
