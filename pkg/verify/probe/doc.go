// Package probe measures in the network namespace of a node for pkg/verify: it is the
// [verify.Prober] that runs as "railctl verify probe".
//
// [Serve] reads requests and writes answers as JSON lines. A prober answers the probes of
// others by UDP sockets, one for each address of each rail. Probes are UDP packets that may
// not be fragmented. All sockets are bound to their interface (SO_BINDTODEVICE), so a packet
// that arrives by another rail gets no answer. The kernel reports when a packet left an
// interface and when one arrived (SO_TIMESTAMPING). This separates delays and losses in a node
// from those in the fabric, without comparing the clocks of two nodes.
//
// It changes nothing in the namespace: the sockets end with the process. It needs CAP_NET_RAW
// in the namespace.
//
// [Start] runs a prober in a network namespace of this machine.
package probe
