package store

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// TestFullObjectIsRefusedBeforeTheServerRefusesIt fills a pool to the limit of
// one object, and measures an ADD there.
func TestFullObjectIsRefusedBeforeTheServerRefusesIt(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "full", "10.0.0.0/16")
	entries := map[string]api.Entry{}
	size := 400 // names, metadata
	for i := 0; ; i++ {
		e := api.Entry{ContainerID: fmt.Sprintf("f%063x", i), PodRef: fmt.Sprintf("default/some-deployment-5d8f9c7b6d-%05d", i), IfName: "net1"}
		if size += e.Size() + len(fmt.Sprint(i+1)); size > maxPoolSize-1<<9 {
			break
		}
		entries[fmt.Sprint(i+1)] = e
	}
	createPool(t, c.Pool, entries)
	added := 0
	for ; added < 20; added++ {
		began := time.Now()
		_, err := n.Allocate(pooltest.Context(t), pooltest.Pod(added), []ipam.Claim{c})
		if err != nil {
			if failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), "node_slice_size") {
				t.Fatal(err)
			}
			break
		}
		if added == 0 {
			for _, r := range pooltest.RequestsSince(t, plane, began) {
				t.Logf("ADD to a pool of %d addresses: %s %s took %s", len(entries), r.Verb, r.Resource, r.Latency.Round(time.Millisecond))
			}
		}
	}
	_, data, err := plane.Admin().Get(context.Background(), poolPath(c.Pool.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("refused with %d addresses in %d bytes", len(entries)+added, len(data))
	if added == 0 || added == 20 || len(data) < maxPoolSize-1<<9 {
		t.Errorf("%d ADDs before the refusal, %d bytes", added, len(data))
	}
	n.del(pooltest.Pod(0), c.Pool) // still works
	n.add(pooltest.Pod(0), c)
}
