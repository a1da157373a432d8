// Railctl shows a person what rail-cni has lent on this node, and ends
// attachments whose pod is gone.
//
// It reads the ledger and the node through pkg/ledger, pkg/attach and pkg/link,
// and knows nothing of files. It makes no ledger where there is none, and
// changes nothing but by "railctl gc".
//
// It exits with 0 when all went well, and with 1 otherwise: also when it could
// show or end only a part, which it then has done, and says so on stderr.
package main
