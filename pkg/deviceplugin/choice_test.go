package deviceplugin

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rail-cni/rail-cni/pkg/pcie"
)

// eight returns the NICs of a server with two NUMA nodes. Each node has two switches, and each
// switch has two NICs and two GPUs.
func eight(gpus ...int) []candidate {
	var list []candidate
	for i := range 8 {
		c := candidate{id: fmt.Sprint(i), switchOf: fmt.Sprint("switch", i/2), numa: i / 4}
		for _, g := range gpus {
			d := pcie.SYS
			switch {
			case i/2 == g/2:
				d = pcie.PIX
			case i/4 == g/4:
				d = pcie.NODE
			}
			c.distances = append(c.distances, d)
		}
		list = append(list, c)
	}
	return list
}

// without returns the candidates except those with these IDs.
func without(list []candidate, ids ...string) []candidate {
	return slices.DeleteFunc(slices.Clone(list), func(c candidate) bool { return slices.Contains(ids, c.id) })
}

// free sets the number of free GPUs at each switch.
func free(list []candidate, at map[string]int) []candidate {
	for i := range list {
		list[i].freeGPUs = at[list[i].switchOf]
	}
	return list
}

func TestChoice(t *testing.T) {
	for name, c := range map[string]struct {
		from []candidate
		must []string
		size int
		want []string
	}{
		"the NIC at the GPU's switch":            {eight(6), nil, 1, []string{"6"}},
		"one NIC for each GPU":                   {eight(0, 7), nil, 2, []string{"0", "6"}},
		"two GPUs of one switch":                 {eight(4, 5), nil, 2, []string{"4", "5"}},
		"more NICs than GPUs":                    {eight(2), nil, 2, []string{"2", "3"}},
		"fewer NICs than GPUs":                   {eight(0, 1, 2, 3), nil, 2, []string{"0", "1"}},
		"the other NIC of the switch is gone":    {without(eight(4, 5), "5"), nil, 2, []string{"4", "6"}},
		"must is far from the GPU":               {eight(0), []string{"7"}, 2, []string{"0", "7"}},
		"must alone":                             {eight(0), []string{"7"}, 1, []string{"7"}},
		"all":                                    {eight(0, 1), nil, 8, []string{"0", "1", "2", "3", "4", "5", "6", "7"}},
		"more than there are":                    {without(eight(0), "1", "2", "3", "4", "5"), nil, 4, []string{"0", "6", "7"}},
		"unknown GPUs: the first":                {eight(), nil, 1, []string{"0"}},
		"unknown GPUs: other NUMA node first":    {eight(), nil, 2, []string{"0", "4"}},
		"unknown GPUs: one at each switch":       {eight(), nil, 4, []string{"0", "2", "4", "6"}},
		"unknown GPUs: must counts":              {eight(), []string{"1"}, 2, []string{"1", "4"}},
		"unknown GPUs: where GPUs are free":      {free(eight(), map[string]int{"switch1": 1, "switch3": 2}), nil, 3, []string{"2", "6", "7"}},
		"unknown GPUs: none free is as all free": {free(eight(), nil), nil, 2, []string{"0", "4"}},
		"unknown GPUs: more than there are":      {without(eight(), "1", "2", "3", "4", "5", "6"), nil, 3, []string{"0", "7"}},
		"nothing":                                {nil, nil, 1, nil},
		"none wanted":                            {eight(0), nil, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := choose(c.from, c.must, c.size)
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("chose %v, want %v", got, c.want)
			}
		})
	}
}

func TestLevelIsThatOfTheFarthestPair(t *testing.T) {
	for name, c := range map[string]struct {
		nics []candidate
		want string
	}{
		"all near":        {without(eight(0, 6), "1", "2", "3", "4", "5", "7"), "PIX"},
		"one far":         {without(eight(0, 1), "1", "2", "3", "4", "5", "7"), "SYS"},
		"more than GPUs":  {without(eight(0), "4", "5", "6", "7"), "NODE"},
		"fewer than GPUs": {without(eight(0, 6), "1", "2", "3", "4", "5", "6", "7"), "PIX"},
		"no GPU known":    {eight(), ""},
		"no NIC":          {nil, ""},
	} {
		got := ""
		if l, ok := level(c.nics); ok {
			got = l.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// least returns the smallest sum of distances of all assignments of size NICs to GPUs. The NICs
// include must, and each GPU has at most each NICs. least tries all assignments.
func least(list []candidate, must []string, size int, each []int) int {
	best := 1 << 30
	if size == 0 {
		if slices.ContainsFunc(list, func(c candidate) bool { return slices.Contains(must, c.id) }) {
			return best
		}
		return 0
	}
	if len(list) < size {
		return best
	}
	first, rest := list[0], list[1:]
	if !slices.Contains(must, first.id) {
		best = least(rest, must, size, each)
	}
	for g := range each {
		if each[g] > 0 {
			each[g]--
			best = min(best, int(first.distances[g])+least(rest, must, size-1, each))
			each[g]++
		}
	}
	return best
}

func TestSumOfDistancesIsTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nics, gpus := rapid.IntRange(1, 7).Draw(t, "nics"), rapid.IntRange(1, 4).Draw(t, "gpus")
		list := make([]candidate, nics)
		for i := range list {
			list[i] = candidate{id: fmt.Sprint(i)}
			for range gpus {
				list[i].distances = append(list[i].distances, pcie.Distance(rapid.IntRange(0, 4).Draw(t, "distance")))
			}
		}
		size := rapid.IntRange(1, nics).Draw(t, "size")
		var must []string
		for i := range rapid.IntRange(0, size).Draw(t, "must") {
			must = append(must, fmt.Sprint(nics-1-i))
		}
		chosen := choose(list, must, size)
		if again := choose(list, must, size); !slices.Equal(chosen, again) {
			t.Fatalf("%v, then %v", chosen, again)
		}
		if len(chosen) != size {
			t.Fatalf("chose %v of %d", chosen, size)
		}
		for _, id := range must {
			if !slices.Contains(chosen, id) {
				t.Fatalf("%v lacks %s", chosen, id)
			}
		}
		room := slices.Repeat([]int{(size + gpus - 1) / gpus}, gpus)
		want := least(list, must, size, room)
		kept := slices.DeleteFunc(slices.Clone(list), func(c candidate) bool { return !slices.Contains(chosen, c.id) })
		if got := least(kept, chosen, size, room); got != want {
			t.Fatalf("%v has a sum of %d, and the least is %d", chosen, got, want)
		}
	})
}

func TestSpreadTakesSizeDifferentNICs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := make([]candidate, rapid.IntRange(1, 16).Draw(t, "nics"))
		for i := range list {
			list[i] = candidate{
				id: fmt.Sprint(i), switchOf: fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "switch")),
				numa: rapid.IntRange(-1, 1).Draw(t, "numa"), freeGPUs: rapid.IntRange(0, 2).Draw(t, "free"),
			}
		}
		size := rapid.IntRange(1, len(list)).Draw(t, "size")
		must := []string{fmt.Sprint(rapid.IntRange(0, len(list)-1).Draw(t, "must"))}
		chosen := choose(list, must, size)
		slices.Sort(chosen)
		if len(slices.Compact(slices.Clone(chosen))) != size || !slices.Contains(chosen, must[0]) {
			t.Fatalf("chose %v: %d with %s are wanted", chosen, size, must[0])
		}
	})
}
