package local

import (
	"fmt"
	"os"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// fill assigns the first n addresses of c as Allocate does, without opening the
// pool for each.
func fill(b *testing.B, s *Store, c ipam.Claim, n int) {
	b.Helper()
	p, err := s.openPool(testContext, c.Pool, true)
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	if err := p.acquire(testContext); err != nil {
		b.Fatal(err)
	}
	addr := c.Range.First()
	for i := range n {
		o := owner(fmt.Sprintf("%064x", i), fmt.Sprint("pod-", i), "net1")
		if ok, err := p.take(testContext, o, addr, c.Exclusive); err != nil || !ok {
			b.Fatal(ok, err)
		}
		addr = addr.Next()
	}
	p.end(testContext, nil)
}

// BenchmarkAllocate is an ADD and a DEL on the store, with 10 and with 60000
// assigned addresses.
func BenchmarkAllocate(b *testing.B) {
	base := "" // the default place of temporary files
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		base = "/dev/shm" // tmpfs, like /run on a node
	}
	for _, network := range []string{"10.0.0.0/16", "2001:db8::/64"} {
		for _, handedOut := range []int{10, 60000} {
			dir, err := os.MkdirTemp(base, "rail-cni-bench")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			s, c := New(dir), claim(b, network)
			fill(b, s, c, handedOut)
			b.Run(fmt.Sprintf("%s/%d", network, handedOut), func(b *testing.B) {
				o := owner("new", "new", "net1")
				for b.Loop() {
					add(b, s, o, c)
					del(b, s, o, c.Pool)
				}
			})
			if err := os.RemoveAll(dir); err != nil {
				b.Fatal(err)
			}
		}
	}
}
