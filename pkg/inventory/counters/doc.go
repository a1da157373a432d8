// Package counters exports the counters of a node's RDMA devices as metrics. The metrics of a lent
// NIC name the pod that has the NIC.
//
// The metrics have the same names (rdma_<counter>_total) and labels as those of spiderpool's
// exporter, because spiderpool's dashboards use them. For each port there are the counters of the
// driver. For the port's interface there are the counters of its vport, the pauses and discards of
// each priority, and the speed.
package counters
