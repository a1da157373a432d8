// Package doctor plants defects on a real cluster, one after another, and judges it by the
// real "railctl doctor": each defect is found by the IDs of its rules, and nothing else is
// reported. Between them the cluster is healthy, and the doctor reports nothing.
//
// The cluster of [cluster] has rail-agent as its users install it, by the chart. Its NICs are
// veths, whose PCI functions are files of the node. Rules about RDMA devices need hardware or
// Soft-RoCE, and their defects are planted in the rig.
package doctor
