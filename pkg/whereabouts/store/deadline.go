package store

import (
	"path/filepath"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/sandbox"
)

const (
	// SandboxTime is how long all ADDs of one sandbox together may ask for addresses.
	// Multus calls these ADDs one after another, and a kubelet allows a sandbox four
	// minutes (twice its runtimeRequestTimeout). The rest of the four minutes is for links,
	// and for the DELs if one ADD fails.
	SandboxTime = 3 * time.Minute
	// kubeletTime is the age at which a sandbox is so old that its pod must be running. An
	// ADD then adds an interface to a running pod, and earlier ADDs do not bound it.
	kubeletTime = 4 * time.Minute
	// minTime is the time that every ADD has, even if its sandbox has nearly no time left.
	// A server that works answers in a fraction of this time.
	minTime = 5 * time.Second
)

// Deadline returns when the ADDs of owner's container must stop asking for addresses. It
// returns the zero time if the sandbox is so old that its pod must be running. netns is the
// same as Netns in [Options].
func Deadline(stateDir, netns string, owner ipam.Owner) time.Time {
	now := time.Now()
	begun := now
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(begun) {
			begun = t
		}
	}
	earlier(sandbox.Open(netns).Born)
	// The sandbox has a known time of birth only if the runtime pins the namespace's file to
	// a path. The notes of the container's earlier ADDs have a time at which it existed.
	eachServer(filepath.Join(stateDir, storeDir), func(_ string, all notes) {
		noted, _ := all.list(statefile.Name(owner.ContainerID) + "@")
		for _, n := range noted {
			if n.Owner.ContainerID == owner.ContainerID {
				earlier(n.Born)
			}
		}
	})
	if now.Sub(begun) >= kubeletTime {
		return time.Time{}
	}
	end := begun.Add(SandboxTime)
	if least := now.Add(minTime); end.Before(least) {
		return least
	}
	return end
}
