package plugin

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestFiveHundredParallelAddsGetFiveHundredAddresses(t *testing.T) {
	n := newNode(t)
	config := n.config(`{"range":"10.0.0.0/16","gateway":"10.0.0.1"}`)
	const adds = 500
	var mu sync.Mutex
	var wg sync.WaitGroup
	holder := map[string]string{}
	begin := make(chan struct{})
	for i := range adds {
		wg.Go(func() {
			a := attachment{id: fmt.Sprint("c", i), ifname: "net1"}
			<-begin
			out, err := run(a.env("ADD"), config)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s: %v", a.id, err)
				return
			}
			got := addresses(t, out)[0]
			if other, taken := holder[got]; taken {
				t.Errorf("%s and %s both have %s", a.id, other, got)
			}
			holder[got] = a.id
		})
	}
	began := time.Now()
	close(begin)
	wg.Wait()
	t.Logf("%d processes in %v", adds, time.Since(began))
	if len(holder) != adds {
		t.Errorf("%d different addresses", len(holder))
	}
	// They are the lowest addresses, without a gap.
	for i := range adds {
		if want := fmt.Sprintf("10.0.%d.%d/16", (i+2)/256, (i+2)%256); holder[want] == "" {
			t.Errorf("nobody has %s", want)
		}
	}
}

// TestKilledAtRandom kills some of many processes at random moments. No two processes that
// answer have the same address, and after a DEL of each attachment nothing is left.
func TestKilledAtRandom(t *testing.T) {
	n := newNode(t)
	// Two overlapping pools, so that there are reservations to lose.
	configs := []string{n.config(`{"range":"10.0.0.0/24"}`), n.config(`{"range":"10.0.0.0/16"}`)}
	rnd := rand.New(rand.NewPCG(3, 4))
	holder := map[string]string{}
	var mu sync.Mutex
	for round := range 6 {
		var wg sync.WaitGroup
		for i := range 40 {
			a := attachment{id: fmt.Sprintf("r%dc%d", round, i), ifname: "net1"}
			config := configs[i%2]
			var fuse time.Duration
			if i%3 != 0 {
				fuse = time.Duration(1+rnd.IntN(60000)) * time.Microsecond
			}
			wg.Go(func() {
				out, finished := runFused(t, a, config, fuse)
				if !finished {
					return
				}
				bare, _, _ := strings.Cut(addresses(t, out)[0], "/")
				mu.Lock()
				defer mu.Unlock()
				if other, taken := holder[bare]; taken {
					t.Errorf("%s and %s both have %s", a.id, other, bare)
				}
				holder[bare] = a.id
			})
		}
		wg.Wait()
	}
	t.Logf("%d of 240 were not killed", len(holder))
	for round := range 6 {
		for i := range 40 {
			n.del(attachment{id: fmt.Sprintf("r%dc%d", round, i), ifname: "net1"}, configs[i%2])
		}
	}
	n.settle(configs...)
	n.checkEmpty("after DEL of all")
}

// settle takes each pool's lock, which tidies up if needed.
func (n *node) settle(configs ...string) {
	n.t.Helper()
	for _, c := range configs {
		a := attachment{id: "settle", ifname: "net1"}
		n.add(a, c)
		n.del(a, c)
	}
}

// runFused runs an ADD and kills it after fuse, unless that is zero.
func runFused(t *testing.T, a attachment, config string, fuse time.Duration) (string, bool) {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = a.env("ADD")
	cmd.Stdin = strings.NewReader(config)
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return "", false
	}
	if fuse > 0 {
		time.AfterFunc(fuse, func() { _ = cmd.Process.Kill() })
	}
	if err := cmd.Wait(); err != nil {
		if fuse == 0 {
			t.Errorf("%s: %v %s", a.id, err, out.String())
		}
		return "", false
	}
	return out.String(), true
}
