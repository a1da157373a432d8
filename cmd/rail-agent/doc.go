// Rail-agent does the work on a node for which no plugin runs. Each of its
// duties is a command. ADD and DEL need none of them.
//
// "rail-agent run" returns NICs to the host as soon as their pod has died
// (pkg/agent). It also installs and uninstalls the plugins (pkg/install/node),
// and renews the kubeconfig by which they reach the cluster (pkg/credential).
// "rail-agent uninstall" only uninstalls. "rail-agent probe" asks a running
// agent whether it is ready.
//
// "rail-agent ipam" reconciles the addresses of the cluster
// (pkg/whereabouts/reconcile).
//
// The program contains the commands, their flags, and the start and end of the
// process. Everything else is in these packages.
//
// It logs to stderr, one line of text for each event, and ends with 0 on
// SIGTERM or SIGINT. It exits with 1 if it cannot start; a command that ends by
// itself also exits with 1 if something is left undone.
//
// On a node, with the node's kubeconfig:
//
//	rail-agent run --state-dir /run/rail-cni --kubeconfig /etc/kubernetes/kubelet.conf
package main
