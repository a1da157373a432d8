// Package owners runs the daemons that own the NICs of real hosts, each in a network namespace
// of the test: NetworkManager, systemd-networkd, FRRouting and keepalived. Its tests lend the
// NICs of these daemons to pods.
//
// The daemons are Debian's, unpacked and not installed ("make owners"). They see a /run, /etc/passwd
// and /etc/group of their own, and a /sys that is read-only, by which they know that no
// udev runs.
package owners
