// Package software has the rules about the programs that give NICs to pods: the records of the
// plugins, the plugins in the CNI directory and Multus, device plugins and the kubelet, and
// rail-agent.
package software
