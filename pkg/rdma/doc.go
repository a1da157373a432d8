// Package rdma uses the kernel's RDMA core: it lists devices and ports of a
// network namespace, with their char devices, GIDs and counters, and moves a
// device from one namespace to another.
//
// Everything goes through a [Core], which belongs to one network namespace. The Core sends its
// requests through a socket that was opened in that namespace, and from a thread that is in that
// namespace. It reads the sysfs of that namespace. All three matter: the kernel answers a read
// according to the socket's namespace, allows a move according to the thread's namespace, and shows
// in sysfs what the mount's namespace has.
//
// The package hides these properties of the kernel: a list of devices can skip some devices while
// another is moved; a device that moves is in no namespace for some milliseconds; GUIDs come in
// host byte order. The package cannot hide one property: if two devices of a node move at the same
// time, their uverbs numbers may be exchanged ([UverbsChanged]). The caller must prevent that with
// one lock for the whole node around each [Core.Move].
//
// The package does not know CNI, and never moves or changes a netdev. Package ibaddr below it has GUIDs, GIDs and P_Keys, and
// package netdevs above it finds the interfaces of ports.
//
// To move a device to a pod, under the node's lock:
//
//	d, err := host.ByName("mlx5_0")
//	if err != nil {
//		return err
//	}
//	moved, err := host.Move(ctx, d, pod)
package rdma
