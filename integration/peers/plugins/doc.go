// Package plugins pins the CNI project's plugins that "make peers" builds into
// bin/peers: host-device, macvlan, bridge, loopback, sbr, tuning, dhcp, host-local and static.
//
// They have a module to themselves, with no other requirement, so that each is
// built from the dependencies of its release and not from newer ones: with a
// newer github.com/containernetworking/cni the same plugin is 1.5 MB larger and
// starts more slowly, and a benchmark against it would flatter ours.
package plugins
