// Package rdma speaks to the kernel's RDMA core: which devices and ports there
// are, in which network namespace, with which char devices, GIDs and counters;
// and it moves a device from one namespace to another.
//
// Everything goes through a [Core], which belongs to one network namespace. Its
// requests leave through a socket that was opened in that namespace, from a
// thread that is in it, and its sysfs is the one of that namespace. All three
// matter: the kernel answers a read by the socket's namespace, allows a move by
// the thread's, and shows in sysfs what the mount's namespace has.
//
// What the kernel does and this package hides: a list of devices can skip some
// while another is moved; a device that moves is for some milliseconds in no
// namespace at all; GUIDs come in host byte order. What it cannot hide: when
// two devices of a node move at the same time, their uverbs numbers may be
// exchanged ([UverbsChanged]). The caller prevents that with one lock for the
// whole node round each [Core.Move].
//
// It knows nothing of CNI, and imports of the project only pkg/link (for the
// namespace) and cnierr. It never moves or changes a netdev.
package rdma
