// Package probe measures in the network namespace of a node for pkg/verify. It implements the
// [verify.Prober] that runs as "railctl verify probe".
//
// [Serve] reads requests and writes answers as JSON lines. A prober answers the probes of other
// probers on UDP sockets. It has one socket for each address of each rail. Probes are UDP packets
// that may not be fragmented. All sockets are bound to their interface (SO_BINDTODEVICE), so a
// packet that arrives on another rail gets no answer. The kernel reports when a packet left an
// interface and when a packet arrived (SO_TIMESTAMPING). So delays and losses in a node can be told
// apart from delays and losses in the fabric, without comparing the clocks of two nodes.
//
// A prober changes nothing in the namespace: its sockets end with the process. It needs CAP_NET_RAW
// in the namespace.
//
// [Start] runs a prober in a network namespace of this machine.
package probe
