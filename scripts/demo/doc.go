// Demo shows rail-cni on one machine in about two minutes: two nodes with eight
// rail NICs each, whose NICs the NADs of examples/ lend to two pods and return
// to the host. It is also the acceptance test of those files: it checks
// everything that it shows, and exits with 1 at the first error.
//
// It does not change the machine, unless told to. The first part runs in
// network, mount and process namespaces of its own, with a /run of its own, so
// it leaves nothing behind even if it is killed, and a real node's state is
// neither seen nor changed. The second part (-rdma) needs an RDMA core and
// NICs: integration/rig runs it in a virtual machine, and it refuses to run
// elsewhere. scripts/demo.sh runs both. With -nics the second part uses NICs of
// this host instead, which it lends to two pods and returns.
//
// It runs the built binaries as a runtime does (through cnitool), checks with
// ip(8) and ping(8), and imports only examples and the rig's packages: its
// findings are those of a user.
package main
