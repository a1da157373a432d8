// Package doctor makes defects on a real cluster, one after another, and runs the real
// "railctl doctor". The doctor must find each defect by the expected rules, and must report
// nothing else. Between two defects the cluster is healthy, and the doctor must report nothing.
//
// The cluster of [cluster] has rail-agent as users install it, by the chart. Its NICs are
// veths, and their PCI functions are files of the node. Rules about RDMA devices need hardware
// or Soft-RoCE, so the rig tests them.
package doctor
