package node

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/replay"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// Users returns the users of this node's plugins. Users are pods with NICs from rail-cni, pods that
// got addresses from rail-cni through another plugin, and addresses that wait to be freed. A record
// that cannot be read counts as a user.
func Users(stateDirs []string) []string {
	var all []string
	known := map[ledger.Key]bool{}
	for _, dir := range stateDirs {
		if ledger.Exists(dir) {
			l, err := ledger.Open(dir)
			if err != nil {
				all = append(all, err.Error())
				continue
			}
			records, errs := l.List()
			l.Close()
			for _, r := range records {
				known[r.Key] = true
				all = append(all, fmt.Sprintf("%s has %s as %s", r.Holder(), r.NICName(), r.IfName))
			}
			for _, err := range errs {
				all = append(all, err.Error())
			}
		}
		for _, n := range store.Allocations(dir) {
			if !known[ledger.Key{ContainerID: n.ContainerID, IfName: n.IfName}] {
				all = append(all, fmt.Sprintf("pod %s has the address %s at %s", n.PodRef, n.Addr, n.IfName))
			}
		}
	}
	switch waiting, err := (replay.Journals{StateDirs: stateDirs}).Waiting(); {
	case err != nil:
		all = append(all, err.Error())
	case waiting > 0:
		all = append(all, fmt.Sprintf("%d addresses of pods that ended wait to be freed", waiting))
	}
	return all
}
