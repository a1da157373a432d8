// Whereabouts is an IPAM plugin. It reads the same configuration as the plugin of that name
// from the project whereabouts. Package pkg/whereabouts/plugin has the verbs.
//
//	"ipam": {"type": "whereabouts", "range": "10.0.0.0/24"}
package main
