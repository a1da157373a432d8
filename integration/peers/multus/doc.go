// Package multus pins Multus, which calls our plugins in a cluster; "make
// multus" builds it into bin/peers/kubernetes: multus (thin), and multus-daemon
// with multus-shim (thick).
package multus
