// Demo shows what rail-cni does, on one machine and in about two minutes: two
// nodes with eight rail NICs each, and the NADs of examples/ lend them to two
// pods and bring them home. It is the acceptance test of those files as well: it
// checks all that it shows, and exits with 1 at the first thing that is not as it
// should be.
//
// Nothing of it touches the machine, unless told to. The first part runs in
// network, mount and process namespaces of its own, with a /run of its own, so
// it leaves nothing behind however it ends, and the state of a real node is
// neither seen nor changed. The second (-rdma) needs an RDMA core and NICs: it is
// run by integration/rig in a virtual machine, and refuses to run elsewhere.
// scripts/demo.sh runs both. With -nics the second part is on NICs of this very
// host instead, which it lends to two pods and brings home.
//
// It drives the built binaries as a runtime does (through cnitool), looks with
// ip(8) and ping(8), and uses none of the project's packages but examples and
// the rig's: what it finds is what a user would find.
package main
