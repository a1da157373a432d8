// Package netns finds, opens and enters network namespaces, and reports whether they still exist. An [ID] identifies a
// namespace. A [Netns] is an open namespace: it has netlink sockets in the namespace, and can mount the namespace's
// sysfs.
//
//   - netns.go: identity, opening, entering.
//   - find.go: the search for a namespace whose path is lost, and whether a namespace still exists.
//   - new.go: making a namespace.
//   - request.go: requests to rtnetlink. Only pkg/link, the packages below it and pkg/nicstate make such requests.
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
