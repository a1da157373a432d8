// Package verbs has two namespaces speak RDMA to each other, by the programs
// that everybody has for it: ibv_rc_pingpong (ibverbs-utils) and ib_write_bw
// (perftest). The rig's tests, the demo and the benchmark use it.
package verbs
