// Railctl shows the attachments of rail-cni on this node, and ends attachments whose pod is gone.
// It finds what is wrong with the node's rails, sets the node's RDMA mode, and checks the address
// pools of the cluster. It also installs rail-cni in a cluster and uninstalls it.
//
// This package contains the commands, their flags and their output, with its subpackages cli (what
// the commands share), diagnose (doctor, check, report, support-bundle and verify) and pools (ipam).
// Other packages do the work: pkg/inventory reads attachments, pkg/doctor has the rules, pkg/doctor/collect reads the facts for
// the rules, pkg/rdma handles the RDMA mode and the ports of RDMA devices, pkg/whereabouts handles
// address pools, and pkg/install/cluster installs and uninstalls rail-cni.
//
// Railctl does not create a ledger if there is none. Only these commands change anything: "railctl
// gc", "railctl ipam gc", "railctl rails discover --write", "railctl rdma mode MODE" and "railctl
// uninstall".
//
// Railctl exits with 0 if everything succeeded, and with 1 otherwise. "railctl doctor" and "railctl
// check" have the exit codes of pkg/doctor. If a command can show or end only a part, it does this
// part, prints the errors to stderr, and exits with 1.
//
// These commands show the attachments of this node and the pools of the cluster:
//
//	railctl show --wide
//	railctl ipam show
package main
