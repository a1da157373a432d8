// Package nlsocket has sockets of netlink: they take messages of the kernel only, of any size, repeat a dump that the
// kernel interrupted, and ask generic netlink. They stay in the network namespace in which they were opened.
//
//   - dial.go: how a socket is opened.
//   - exchange.go: requests and their answers.
//   - dump.go: dumps that the kernel interrupts.
//   - generic.go: the families of generic netlink.
//
// Who has a namespace uses the sockets of [github.com/rail-cni/rail-cni/pkg/netns.Netns].
package nlsocket
