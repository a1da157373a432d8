// Package multus pins Multus, by whose hands a cluster calls our plugins; "make
// multus" builds it into bin/peers/kubernetes: multus (thin), and multus-daemon
// with multus-shim (thick).
package multus
