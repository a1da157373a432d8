// Rail-agent does the work of a node that is left while no plugin runs. Each of its
// duties is a command. ADD and DEL need none of them.
//
// "rail-agent run" brings NICs home as soon as their pod has died (pkg/agent). It also
// installs and uninstalls the plugins (pkg/install/node), and keeps the kubeconfig by
// which they reach the cluster (pkg/credential). "rail-agent uninstall" only
// uninstalls. "rail-agent probe" asks a running agent whether it is ready.
//
// "rail-agent ipam" reconciles the addresses of the cluster
// (pkg/whereabouts/reconcile).
//
// The program has the commands, their flags, and what begins and ends with the
// process. Everything else is in these packages.
//
// It logs to stderr, one line of text for each event, and ends by SIGTERM or
// SIGINT with 0. It exits with 1 when it cannot begin, and a command that ends
// by itself also when something is left undone.
package main
