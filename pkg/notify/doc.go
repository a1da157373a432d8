// Package notify reports changes of directories and of the kernel's network devices, so
// that a program need not poll often.
//
// A report says only that something may have changed: the receiver reads the state
// itself. A report may be lost, so a receiver polls as well, rarely.
//
//	dirs := notify.NewDirs(log) // one of a process
//	defer dirs.Close()
//	records := dirs.Subscribe(changed)
//	records.Watch("/run/rail-cni/attachments")
//	go notify.Netlink(ctx, host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, log, changed)
package notify
