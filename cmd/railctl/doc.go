// Railctl shows a person what rail-cni has lent on this node, ends attachments
// whose pod is gone, sets the node's RDMA mode, sees to the address pools of the
// cluster, and installs rail-cni in a cluster and takes it away.
//
// It reads the ledger and the node through pkg/ledger, pkg/attach, pkg/link and
// pkg/rdma, and knows nothing of files. It makes no ledger where there is none,
// and changes nothing but by "railctl gc", "railctl ipam gc", "railctl rdma mode
// MODE" and "railctl uninstall". The cluster it reads through pkg/kube and
// pkg/whereabouts, for these two and "railctl ipam" alone.
//
// It exits with 0 when all went well, and with 1 otherwise: also when it could
// show or end only a part, which it then has done, and says so on stderr.
package main
