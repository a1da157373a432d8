// Package sysctl reads and sets the sysctls of one interface ("ipv4/conf/arp_ignore").
package sysctl
