// Bench measures what a pod waits for: CNI ADD and DEL of our plugins, beside
// the plugins of the CNI project and beside the floor, which is the bare move
// of a link by one "ip link set … netns … name …".
//
//	make bench
//
// It runs the plugins' binaries as a runtime does (CNI_* in the environment,
// the configuration on stdin) and takes the wall time of the process. All
// contenders take turns in one run, and each round begins with another one, so
// that whatever else the machine does hits all of them alike; what counts is
// the ratio of the medians. CPU time is shown beside the wall time: where the
// wall time grows and the CPU time does not, the machine was busy, or the kernel
// let the process wait.
//
// Nothing of the machine changes. The programme starts itself once more in a
// new network and mount namespace: this is "the node", with a tmpfs of its own
// on /run and a sysfs of its own on /sys. Pods, and the far ends of the NICs
// (veth pairs), are further network namespaces of its own. All of them are
// gone with the process.
//
// The package imports nothing of the project: it knows its programmes as a
// runtime does, as binaries.
package main
