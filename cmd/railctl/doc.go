// Railctl shows a person what rail-cni has lent on this node, ends attachments
// whose pod is gone, sets the node's RDMA mode, sees to the address pools of the
// cluster, and installs rail-cni in a cluster and takes it away.
//
// It has the commands, their flags and what they print. What they do is in
// packages: pkg/inventory for attachments, pkg/rdma for the RDMA mode and the ports of
// RDMA devices, pkg/whereabouts for address pools, pkg/install/cluster for the
// installation.
//
// It makes no ledger where there is none, and changes nothing but by "railctl gc",
// "railctl ipam gc", "railctl rdma mode MODE" and "railctl uninstall".
//
// It exits with 0 when all went well, and with 1 otherwise: also when it could
// show or end only a part, which it then has done, and says so on stderr.
package main
