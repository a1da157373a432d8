package devices

import (
	"fmt"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/devices/nicplugin"
	"github.com/rail-cni/rail-cni/integration/need"
)

// TestAllocationsLeaveNoFile allocates and frees NICs again and again.
func TestAllocationsLeaveNoFile(t *testing.T) {
	const resource = "rdma/cycle"
	l := theLab(t)
	kubelet := l.kubelet(t)
	p := l.start(t, nicplugin.NodeFile, fmt.Sprintf("resources: {pools: [{name: %s, mode: exclusive, select: {rdma: true}}]}", resource))
	l.awaitAllocatable(t, resource, len(nicplugin.NICs))
	began := time.Now()
	count := rounds(50, 1000)
	var memory []int // after each tenth
	most := 0        // files at a time
	for i := range count {
		name, wanted := fmt.Sprintf("cycle-%d", i), 1+i%len(nicplugin.NICs)
		l.create(t, pod{name: name, resources: map[string]int{resource: wanted}, admitted: true})
		awaitHeld(t, kubelet, name, map[string]int{resource: wanted})
		most = max(most, len(p.Files()))
		l.deleteOne(t, name, true)
		awaitHeld(t, kubelet, name, map[string]int{})
		if (i+1)%(count/10) == 0 {
			memory = append(memory, p.RSS())
		}
	}
	t.Logf("%d allocations in %v; at most %d files at a time; RSS in KiB after each tenth: %v", count, time.Since(began).Round(time.Millisecond), most, memory)
	if most == 0 {
		t.Error("no device information file was ever written")
	}
	if !need.Full() {
		p.Age() // else they stay for a minute
	}
	await(t, "no file is left", func() error {
		if left := p.Files(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	// After the first tenth the process has what it needs; the garbage collector lets it
	// vary by some MiB.
	if first, last := memory[0], memory[len(memory)-1]; last > first+8<<10 {
		t.Errorf("the process has grown from %d to %d KiB", first, last)
	}
}
