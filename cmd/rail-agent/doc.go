// Rail-agent is the node's keeper: what is to be done on a node while no plugin
// runs. Each of its duties is a command. ADD and DEL need none of them.
//
// "rail-agent run" keeps the node: NICs of pods that died come home at once, by
// pkg/agent. It also installs the plugins and takes them away, by
// pkg/install/node, and keeps what they find the cluster by, by pkg/credential;
// "rail-agent uninstall" does only the taking away. "rail-agent probe" asks a running
// one how it is.
//
// "rail-agent ipam" reconciles the addresses of the cluster, by
// pkg/whereabouts.
//
// It has the commands, their flags, and what begins and ends with the process: all
// else is in these packages.
//
// It logs to stderr, one line of text for each event, and ends by SIGTERM or
// SIGINT with 0. It exits with 1 when it cannot begin, and a command that ends
// by itself also when something is left undone.
package main
