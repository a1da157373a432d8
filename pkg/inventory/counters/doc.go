// Package counters sends the counters of a node's RDMA devices to Prometheus, those of lent NICs
// with the pod that has them.
//
// They have the names and labels of spiderpool's exporter, which its dashboards use:
// rdma_<counter>_total, of the driver's counters of each port, and of the interface's counters
// that begin with rx_vport, tx_vport or a priority.
package counters
