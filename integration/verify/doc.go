// Package verify tests "railctl verify" on a cluster of integration/cluster with rail-agent
// installed: two nodes with eight rails. The tests make defects in the fabric between them.
package verify
