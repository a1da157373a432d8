package need

import (
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Environment variables of samples.
const (
	FullVariable = "RAIL_CNI_FULL" // "yes": whole tables, no samples
	SeedVariable = "RAIL_CNI_SEED" // chooses all samples and random sequences, to repeat a failure
)

// Full reports whether tests run their whole tables instead of samples, as with "make
// test FULL=yes", "make test-rig", "make crash" and "make e2e".
func Full() bool { return os.Getenv(FullVariable) == "yes" }

// Seed returns the number that chooses samples and random sequences. All who test a commit
// have the same, which is made of the commit's name; an unpacked archive, which has none, has
// 1. Where [Full] reports true it is of the clock. [SeedVariable] comes before both, and is
// set to the number, for the programs that a test runs.
func Seed() uint64 { return seed() }

var seed = sync.OnceValue(func() uint64 {
	s, err := strconv.ParseUint(os.Getenv(SeedVariable), 10, 64)
	switch {
	case err == nil:
		return s
	case Full():
		s = uint64(time.Now().UnixNano())
	default:
		s = seedOfCommit()
	}
	_ = os.Setenv(SeedVariable, strconv.FormatUint(s, 10)) // fails only for a malformed name
	return s
})

// seedOfCommit returns the number of the commit that is checked out in this directory.
func seedOfCommit() uint64 {
	const digits = 12 // a number that a person can still copy
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil || len(commit) < digits {
		return 1
	}
	s, err := strconv.ParseUint(string(commit[:digits]), 16, 64)
	if err != nil {
		return 1
	}
	return s
}

// Either returns full in the long form ([Full]), else few. It is for a number of repetitions, or
// a time limit.
func Either[T any](few, full T) T {
	if Full() {
		return full
	}
	return few
}

// Sample returns n items of a test's table, chosen at random, in the table's order. It
// returns the whole table if [Full] reports true, or if the table has at most n items. It
// logs the seed.
func Sample[T any](t testing.TB, n int, table []T) []T {
	t.Helper()
	if Full() || n >= len(table) {
		return table
	}
	t.Logf("sample of %d of %d items; to repeat it: %s=%d", n, len(table), SeedVariable, Seed())
	name := fnv.New64a() // of the test: tables of the same length have different samples
	_, _ = name.Write([]byte(t.Name()))
	chosen := rand.New(rand.NewPCG(Seed(), name.Sum64()^uint64(len(table)))).Perm(len(table))[:n]
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
