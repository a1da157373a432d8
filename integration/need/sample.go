package need

import (
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Environment variables of samples.
const (
	FullVariable = "RAIL_CNI_FULL" // "yes": whole tables, no samples
	SeedVariable = "RAIL_CNI_SEED" // chooses all samples, to repeat a failure
)

// Full reports whether tests run their whole tables instead of samples, as with "make
// test FULL=yes", "make test-rig", "make crash" and "make e2e".
func Full() bool { return os.Getenv(FullVariable) == "yes" }

// seed chooses the samples of this process.
var seed = func() uint64 {
	if s, err := strconv.ParseUint(os.Getenv(SeedVariable), 10, 64); err == nil {
		return s
	}
	return uint64(time.Now().UnixNano())
}()

// Sample returns n items of a test's table, chosen at random, in the table's order. It
// returns the whole table if [Full] reports true, or if the table has at most n items. It
// logs the seed.
func Sample[T any](t testing.TB, n int, table []T) []T {
	t.Helper()
	if Full() || n >= len(table) {
		return table
	}
	t.Logf("sample of %d of %d items; to repeat it: %s=%d", n, len(table), SeedVariable, seed)
	name := fnv.New64a() // of the test: tables of the same length have different samples
	_, _ = name.Write([]byte(t.Name()))
	chosen := rand.New(rand.NewPCG(seed, name.Sum64()^uint64(len(table)))).Perm(len(table))[:n]
	slices.Sort(chosen)
	sample := make([]T, 0, n)
	for _, i := range chosen {
		sample = append(sample, table[i])
	}
	return sample
}

// SampleMap is [Sample] for a table that is a map.
func SampleMap[T any](t testing.TB, n int, table map[string]T) map[string]T {
	t.Helper()
	sample := map[string]T{}
	for _, name := range Sample(t, n, slices.Sorted(maps.Keys(table))) {
		sample[name] = table[name]
	}
	return sample
}
