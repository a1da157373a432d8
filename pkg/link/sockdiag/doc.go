// Package sockdiag finds TCP connections by the addresses of a link (sock_diag(7)).
package sockdiag
