package publish

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// watches are the watches of the GID tables of the pods' ports, by port. A shared port, whose table
// has the GIDs of all pods on it, has only one watch.
type watches map[string]*watched

type watched struct {
	watch *ibaddr.GIDWatch
	lent  bool            // only one pod has the port
	pods  map[string]bool // the names of the pods' directories
	// unowned are changed GIDs of a shared port that no pod had at the last poll. Usually they
	// belong to an ADD that has not ended. Otherwise they belong to a new address of one of the
	// pods.
	unowned []ibaddr.GID
}

// watch watches a port for a pod, and adds the watch's key to seen.
func (k *Keeper) watch(seen map[string]bool, pod string, core *rdma.Core, d rdma.Device, port uint32, lent bool) {
	key := fmt.Sprintf("host/%d/%d", d.Index, port)
	if lent {
		key = fmt.Sprintf("%s/%d/%d", pod, d.Index, port)
	}
	seen[key] = true
	if k.join(key, pod) {
		return
	}
	watch, err := core.WatchGIDs(d, port)
	if err != nil {
		return // no report here: reading the table fails as well, and that is reported
	}
	if !k.add(key, pod, &watched{watch: watch, lent: lent, pods: map[string]bool{}}) {
		watch.Close() // another build has made a watch
	}
}

// join adds the pod to the watch with the key. It reports whether there is such a watch.
func (k *Keeper) join(key, pod string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.watches[key]
	if w != nil {
		w.pods[pod] = true
	}
	return w != nil
}

// add stores fresh as the watch with the key, unless there is one already, and adds the pod to the
// watch. It reports whether the watch is fresh.
func (k *Keeper) add(key, pod string, fresh *watched) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watches[key] == nil {
		k.watches[key] = fresh
	}
	w := k.watches[key]
	w.pods[pod] = true
	return w == fresh
}

// only ends the watches of a pod, except those in seen.
func (w watches) only(pod string, seen map[string]bool) {
	for key, watched := range w {
		if !seen[key] {
			delete(watched.pods, pod)
		}
	}
}

// keep ends the watches of the pods for which is returns false.
func (w watches) keep(is func(pod string) bool) {
	for _, watched := range w {
		for pod := range watched.pods {
			if !is(pod) {
				delete(watched.pods, pod)
			}
		}
	}
}

func (w watches) close() {
	for key, watched := range w {
		watched.watch.Close()
		delete(w, key)
	}
}

// poll checks the GID tables, and marks the pods whose GIDs have changed. It closes the watches
// that no pod needs.
func (k *Keeper) poll() {
	k.mu.Lock()
	all := maps.Clone(k.watches)
	k.mu.Unlock()
	for key, w := range all {
		changed, err := w.watch.Changed()
		k.polled(key, w, changed, err)
	}
}

// polled records the result of a poll of one GID table.
func (k *Keeper) polled(key string, w *watched, changed []ibaddr.GID, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var pods []string
	switch {
	case err != nil: // the device is gone, was moved, or was made again
		pods = w.all()
	case w.lent && len(changed) > 0:
		pods = w.all()
	case !w.lent:
		pods = k.withGIDs(w, changed)
	}
	if err != nil || len(w.pods) == 0 {
		w.watch.Close()
		delete(k.watches, key)
	}
	for _, name := range pods {
		if p := k.pods[name]; p != nil {
			p.changed()
		}
	}
}

func (w *watched) all() []string {
	var pods []string
	for name := range w.pods {
		pods = append(pods, name)
	}
	return pods
}

// withGIDs returns the pods on a shared port that have one of the changed GIDs, or the GID's
// address. If a GID has belonged to no pod for two polls, withGIDs returns all pods. The table does
// not tell the pods apart, because each pod calls its interface net1.
func (k *Keeper) withGIDs(w *watched, changed []ibaddr.GID) []string {
	var found []string
	var strange []ibaddr.GID
	late := false
	for _, gid := range append(changed, w.unowned...) {
		owners := k.ownersOf(w, gid)
		found = append(found, owners...)
		if len(owners) > 0 {
			continue
		}
		if slices.Contains(w.unowned, gid) {
			late = true
		} else {
			strange = append(strange, gid)
		}
	}
	w.unowned = strange
	if late {
		return w.all()
	}
	return found
}

// ownersOf returns the pods on a shared port that have the GID, or the GID's address.
func (k *Keeper) ownersOf(w *watched, gid ibaddr.GID) []string {
	text, ip := gid.String(), gid.Addr().String()
	var owners []string
	for name := range w.pods {
		p := k.pods[name]
		if p == nil || p.rails == nil {
			continue
		}
		if slices.ContainsFunc(p.rails.Rails, func(l railinfo.Rail) bool {
			return l.HasAddress(ip) || slices.ContainsFunc(l.GIDs, func(g railinfo.GID) bool { return g.GID == text })
		}) {
			owners = append(owners, name)
		}
	}
	return owners
}
