// Package rbac holds the roles under which rail-cni talks to the API server,
// with nothing in them that is not used: of the plugin "whereabouts", and of
// the agent. "kubectl apply -f deployments/rbac/" gives them to a cluster; this
// package gives them to tests, which run under exactly them. It imports nothing
// of ours.
package rbac

import "embed"

// Files holds the manifests: YAML, several objects in each file.
//
//go:embed *.yaml
var Files embed.FS
