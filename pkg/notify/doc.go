// Package notify reports changes of directories and of the kernel's network devices, so
// that a program need not poll often.
//
// A report means only that something may have changed: the receiver reads the state itself. Reports
// can be lost, so a receiver must also poll from time to time.
//
//	dirs := notify.NewDirs(log) // one for the process
//	defer dirs.Close()
//	records := dirs.Subscribe(changed)
//	records.Watch("/run/rail-cni/attachments")
//	go notify.Netlink(ctx, host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, log, changed)
package notify
