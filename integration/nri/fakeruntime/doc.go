// Package fakeruntime plays the container runtime's part of NRI, with NRI's own library, as
// containerd does: where the real one would take too long or cannot run. The real one is in
// integration/nri and in the rig.
package fakeruntime
