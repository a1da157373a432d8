// Package netns finds, opens and enters network namespaces, and reports whether they still live. A namespace is known by
// its [ID]; an open one, [Netns], has sockets of netlink and the sysfs of the namespace.
//
//   - netns.go: identity, opening, entering.
//   - find.go: the search for a namespace whose path is lost, and whether it lives.
//   - new.go: a namespace of one's own.
//   - request.go: requests to rtnetlink. Only pkg/link, the packages below it and pkg/nicstate make them.
//   - listen.go: messages about changes.
//   - sysfs.go: the sysfs of a namespace.
//
// Each request goes through a socket that was opened in the namespace, so callers need not care about threads.
//
//	pod, err := netns.Find(record.Netns.ID, record.Netns.Path)
//	if err != nil {
//		return err // unknown
//	}
//	if pod == nil {
//		return nil // it is gone
//	}
//	defer pod.Close()
package netns
