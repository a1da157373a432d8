package crash

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// plant builds a host-device with a bug: pieces of a source file replaced. The
// tree itself stays unchanged.
func plant(t *testing.T, source string, replace ...string) (bin string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", source))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	code := string(data)
	for i := 0; i < len(replace); i += 2 {
		if strings.Count(code, replace[i]) != 1 {
			t.Fatalf("%s has not one %q: plant the bug elsewhere", source, replace[i])
		}
		code = strings.Replace(code, replace[i], replace[i+1], 1)
	}
	bin = t.TempDir()
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(bin, "planted.go")}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"planted.go": code, "overlay.json": string(overlay)} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-overlay", filepath.Join(bin, "overlay.json"), "-o", bin+"/", "../../plugins/host-device")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"whereabouts", "railctl", "rail-agent"} {
		if err := os.Symlink(filepath.Join(testnet.Bin(t), name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// everyPoint is a sample of all points.
const everyPoint = 1 << 20

// TestPlantedBugsAreFound tests the harness: with the record written after the
// move, or removed before the NIC is on the host, it must find losses.
func TestPlantedBugsAreFound(t *testing.T) {
	need.Root(t)
	for name, bug := range map[string]struct {
		verb, source string
		replace      []string
	}{
		"the record is written after the move": {"ADD", "pkg/attachment/tx.go", []string{
			`return true, errors.Join(tx.Node.step("record"), tx.Node.Ledger.Put(tx.Record))`, `return true, tx.Node.step("record")`,
		}},
		"the record is removed before the NIC is home": {"DEL", "pkg/attachment/release.go", []string{
			"		released = n.releaseInterface(", "		_ = n.Ledger.Remove(r)\n		released = n.releaseInterface(",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := plant(t, bug.source, bug.replace...)
			for _, recovery := range need.Sample(t, 1, []string{byDEL, byGC}) {
				h := newHost(t, "host-device", bug.verb, bin)
				r := sweep(t, h, "host-device, planted: "+name, bug.verb, mode{whole: true, recovery: recovery}, everyPoint, need.Either(1, 2))
				if len(r.losses) == 0 {
					t.Errorf("%d of %d points were tried, and nothing was found with %s", r.tried, r.points, recovery)
					continue
				}
				first, _, _ := strings.Cut(r.losses[0], "\n")
				t.Logf("%d of %d points lose something with %s, for example %s", len(r.losses), r.tried, recovery, first)
			}
		})
	}
}

// TestModelFindsAPlantedBug tests the model by a DEL that keeps the address. To
// find the shortest sequence, an ADD and the end, takes minutes.
//
// A kill after some milliseconds may hit another place in the next run, where rapid cannot
// reproduce the failure. So nothing is killed, and the seed is the same each time.
func TestModelFindsAPlantedBug(t *testing.T) {
	need.Root(t)
	bin := plant(t, "pkg/attachment/release.go", "f.err = part.Release(ctx, &Releasing{Node: n, Record: &of})", "_ = of")
	_, said, err := startWorld(t, bin, worldOf{seed: 2, steps: 10 * sequence, shorten: 5 * time.Second, calm: true})
	if err == nil || !strings.Contains(said, "the pool has ") {
		t.Fatalf("not found: %v\n%s", err, said)
	}
	first, _, _ := strings.Cut(said, "this is wrong:")
	_, last, _ := strings.Cut(said, "Failed test output:")
	last, _, _ = strings.Cut(last, firstViolation)
	_, last, found := strings.Cut(last, "after\n")
	if from, to := strings.Count(first, " of pod"), strings.Count(last, " of pod"); !found || to == 0 || to > from {
		t.Errorf("a sequence with %d calls and ends of pods became one with %d\n%s", from, to, said)
	}
}
