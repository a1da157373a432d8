// Railctl shows the attachments of rail-cni on this node, ends those whose pod
// is gone, finds what is wrong with the node's rails, sets the node's RDMA mode,
// checks the address pools of the cluster, and installs rail-cni in a cluster and
// uninstalls it.
//
// The program contains the commands, their flags and their output. Packages do
// the work: pkg/inventory for attachments, pkg/doctor for rules and
// pkg/doctor/collect for their facts, pkg/rdma for the RDMA mode and the ports of
// RDMA devices, pkg/whereabouts for address pools, pkg/install/cluster
// for the installation.
//
// It does not create a missing ledger. Only "railctl gc", "railctl ipam gc",
// "railctl rails discover --write", "railctl rdma mode MODE" and "railctl uninstall"
// change anything.
//
// It exits with 0 if all went well, and with 1 otherwise; "railctl doctor" and
// "railctl check" have the exit codes of pkg/doctor. If only a part can be
// shown or ended, it does that part, prints the errors to stderr, and exits
// with 1.
//
// The attachments of this node, and the cluster's pools:
//
//	railctl show --wide
//	railctl ipam show
package main
