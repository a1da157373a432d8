// Package remote finds the pods of rail-agent in a cluster. It asks them, through the API server,
// for the facts of their nodes. So commands that use it can run on any machine.
package remote
