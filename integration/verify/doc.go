// Package verify tests "railctl verify" on a cluster of integration/cluster with rail-agent
// installed: two nodes with eight rails, whose fabric is broken on purpose.
package verify
