package store

import (
	"path/filepath"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

const (
	// SandboxTime is how long the ADDs of one sandbox may ask for addresses, all of
	// them together: Multus calls them one after another, and a kubelet allows a
	// sandbox four minutes (twice its runtimeRequestTimeout). The rest is for links,
	// and for the DELs if one ADD fails.
	SandboxTime = 3 * time.Minute
	// kubeletTime is the age of a sandbox after which its pod runs: an ADD then adds an
	// interface to a running pod, and is not bounded by earlier ADDs.
	kubeletTime = 4 * time.Minute
	// minTime is the time that every ADD has, even if its sandbox is nearly out of
	// time. A server that works answers in a fraction of it.
	minTime = 5 * time.Second
)

// Deadline returns when the ADDs of owner's container must stop asking for addresses, or
// zero if the sandbox is older than that. netns is as in [Options].
func Deadline(stateDir, netns string, owner ipam.Owner) time.Time {
	now := time.Now()
	begun := now
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(begun) {
			begun = t
		}
	}
	earlier(openSandbox(netns).born)
	// Not each runtime pins the namespace's file to a path, so that it has a time of
	// birth. The container's earlier ADDs have noted theirs.
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
