package need

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestSampleIsPartOfTheTableAndFullIsAll(t *testing.T) {
	table := make([]int, 100)
	for i := range table {
		table[i] = i
	}
	t.Setenv(FullVariable, "")
	some := Sample(t, 7, table)
	if len(some) != 7 || !slices.IsSorted(some) || len(slices.Compact(slices.Clone(some))) != 7 || some[0] < 0 || some[6] > 99 {
		t.Errorf("7 of 0 … 99 are %v", some)
	}
	if again := Sample(t, 7, table); !slices.Equal(again, some) {
		t.Errorf("with the same seed %v are %v", some, again)
	}
	if few := SampleMap(t, 2, map[string]int{"a": 1, "b": 2, "c": 3}); len(few) != 2 || few["a"]+few["b"]+few["c"] < 3 {
		t.Errorf("2 of 3 are %v", few)
	}
	if all := Sample(t, 100, table); !slices.Equal(all, table) {
		t.Errorf("100 of 100 are %v", all)
	}
	t.Setenv(FullVariable, "yes")
	if all := Sample(t, 7, table); !slices.Equal(all, table) {
		t.Errorf("with %s=yes 7 of 100 are %v", FullVariable, all)
	}
}

// A seed that chose the same items for ever would be no sample of the table.
func TestSeedsChooseDifferentSamples(t *testing.T) {
	t.Setenv(FullVariable, "")
	table := make([]int, 20)
	for i := range table {
		table[i] = i
	}
	was := seed
	defer func() { seed = was }()
	seen := map[int]bool{}
	for s := range uint64(200) {
		seed = func() uint64 { return s }
		for _, i := range Sample(t, 4, table) {
			seen[i] = true
		}
	}
	if len(seen) != len(table) {
		t.Errorf("200 seeds have chosen %d of %d items", len(seen), len(table))
	}
}

// Two tests with tables of the same length, as the RDMA modes, do not always choose the same.
func TestTestsHaveSamplesOfTheirOwn(t *testing.T) {
	t.Setenv(FullVariable, "")
	seen := map[int]bool{}
	for i := range 50 {
		t.Run(strconv.Itoa(i), func(t *testing.T) { seen[Sample(t, 1, []int{0, 1})[0]] = true })
	}
	if len(seen) != 2 {
		t.Errorf("50 tests have all chosen %v", seen)
	}
}

// A run of one person and a run of CI test the same, if they test the same commit.
func TestSeedIsThatOfTheCommit(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
			return strings.HasPrefix(kv, "RAIL_CNI_") || strings.HasPrefix(kv, "GIT_")
		}), child+"=seed")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	seed := func() string {
		line, _, _ := strings.Cut(run(self, "-test.run=^TestChild$"), "\n")
		return line
	}
	if got := seed(); got != "seed 1 1" {
		t.Errorf("without a commit: %q", got)
	}
	run("git", "init", "-q")
	commit := func(text string) string {
		run("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "--allow-empty", "-m", text)
		n, err := strconv.ParseUint(run("git", "rev-parse", "--short=12", "HEAD"), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("seed %d %d", n, n)
	}
	for _, text := range []string{"first", "second"} {
		if want, got, again := commit(text), seed(), seed(); got != want || again != want {
			t.Errorf("%s commit: %q, then %q, want %q", text, got, again, want)
		}
	}
}
