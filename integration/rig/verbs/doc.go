// Package verbs measures RDMA between two namespaces with the usual programs:
// ibv_rc_pingpong (ibverbs-utils) and ib_write_bw (perftest). The rig's tests,
// the demo and the benchmark use it.
package verbs
