// Package fakekubelet plays the kubelet's part for a device plugin, where the real one
// would take too long or cannot run: it accepts registrations, and says which devices the
// pods have. What it does with a device plugin that has registered is the test's. The real
// kubelet is in integration/devices and in integration/rig/pods.
package fakekubelet
