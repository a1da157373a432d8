// Rail-agent does the work on a node that must be done while no plugin runs. Each of its duties is
// a command. ADD and DEL work without rail-agent.
//
// "rail-agent run" returns NICs to the host as soon as their pod has died (pkg/agent). It also
// installs and uninstalls the plugins (pkg/install/node), and renews the kubeconfig with which the
// plugins reach the cluster (pkg/credential). "rail-agent uninstall" only uninstalls the plugins.
// "rail-agent probe" asks a running agent whether it is ready.
//
// "rail-agent ipam" reconciles the addresses of the cluster
// (pkg/whereabouts/reconcile).
//
// This package contains the commands, their flags, and the start and the end of the process.
// Everything else is in the packages that are named above.
//
// Rail-agent logs to stderr, one line of text for each event. On SIGTERM or SIGINT it exits with 0.
// If it cannot start, it exits with 1. A command that ends by itself also exits with 1 if it could
// not do everything.
//
// This command runs the agent on a node, with the node's kubeconfig:
//
//	rail-agent run --state-dir /run/rail-cni --kubeconfig /etc/kubernetes/kubelet.conf
package main
