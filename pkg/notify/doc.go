// Package notify reports changes of directories and of the kernel's network devices, so
// that a program need not poll often.
//
// A report says only that something may have changed: the receiver reads the state
// itself. A report may be lost, so a receiver polls as well, rarely.
//
//	records := notify.NewDirs(log)
//	records.Watch("/run/rail-cni/attachments")
//	go records.Run(ctx, changed)
//	go notify.Netlink(ctx, host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, log, changed)
package notify
