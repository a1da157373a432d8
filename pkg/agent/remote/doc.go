// Package remote finds the pods of rail-agent in a cluster, and asks them for the facts of
// their nodes through the API server, for commands that run anywhere.
package remote
