package store

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/sandbox"
)

func TestADDsOfASandboxShareTheirTime(t *testing.T) {
	const tolerance = time.Second
	for what, tc := range map[string]struct {
		began []time.Duration // ages of the ADDs of the other rails
		other bool            // they are another container's
		want  time.Duration   // from now; 0 is no bound
	}{
		"the first":                {nil, false, SandboxTime},
		"after others":             {[]time.Duration{30 * time.Second, time.Minute, 10 * time.Second}, false, SandboxTime - time.Minute},
		"nothing is left":          {[]time.Duration{SandboxTime + 30*time.Second}, false, minTime},
		"in a pod that is running": {[]time.Duration{time.Hour}, false, 0},
		"others of another":        {[]time.Duration{2 * time.Minute}, true, SandboxTime},
		"the clock was set back":   {[]time.Duration{-time.Hour}, false, SandboxTime},
		"no age is noted":          {[]time.Duration{0}, false, SandboxTime},
	} {
		t.Run(what, func(t *testing.T) {
			n, owner := newNode(t), pooltest.Pod(1)
			for i, age := range tc.began {
				of := owner
				of.IfName = "net" + string(rune('a'+i))
				if tc.other {
					of.ContainerID += "x"
				}
				noted := &note{Owner: of, Pool: ipam.Pool{Prefix: netip.MustParsePrefix("10.0.0.0/24")}, Addr: netip.MustParseAddr("10.0.0.1"), Key: "1"}
				if age != 0 {
					noted.Born = time.Now().Add(-age)
				}
				if err := n.notes.put(noted); err != nil {
					t.Fatal(err)
				}
			}
			now, got := time.Now(), Deadline(n.state+"/run", "", owner)
			if tc.want == 0 {
				if !got.IsZero() {
					t.Errorf("a bound of %s, want none", got.Sub(now))
				}
				return
			}
			if d := got.Sub(now) - tc.want; d < -tolerance || d > tolerance {
				t.Errorf("a bound of %s, want %s", got.Sub(now), tc.want)
			}
		})
	}
}

// The time runs since the sandbox was made, not since its first ADD asked.
func TestTimeOfASandboxBeginsWithItsNamespace(t *testing.T) {
	pod := testnet.NewNetns(t, "pod")
	path := "/run/netns/" + pod.Name
	born := sandbox.Open(path).Born
	if got := Deadline(t.TempDir(), path, pooltest.Pod(0)); !got.Equal(born.Add(SandboxTime)) {
		t.Errorf("the time ends %s after the sandbox was made, want %s", got.Sub(born), SandboxTime)
	}
}
