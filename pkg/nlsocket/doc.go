// Package nlsocket has netlink sockets. Such a socket accepts messages only from the kernel, and messages of any
// size. It can send requests to generic netlink families. [RetryDump] repeats a dump that the kernel interrupted. A socket
// stays in the network namespace in which it was opened.
//
//   - dial.go: how a socket is opened.
//   - exchange.go: requests and their answers.
//   - dump.go: dumps that the kernel interrupts.
//   - generic.go: the families of generic netlink.
//
// Code that has a [github.com/rail-cni/rail-cni/pkg/netns.Netns] uses the sockets of that Netns.
package nlsocket
