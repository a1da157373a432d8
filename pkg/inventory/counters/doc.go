// Package counters has the counters of a node's RDMA devices as metrics, those of lent NICs with
// the pod that has them.
//
// The metrics have the names and labels of spiderpool's exporter, which its dashboards use:
// rdma_<counter>_total. They are the driver's counters of each port and, of the port's interface,
// those of its vport, the pauses and discards of each priority, and the speed.
package counters
