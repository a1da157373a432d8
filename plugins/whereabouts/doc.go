// Whereabouts is an IPAM plugin that reads the configuration of the plugin of the same
// name. Package pkg/whereabouts/plugin has the verbs.
//
//	"ipam": {"type": "whereabouts", "range": "10.0.0.0/24"}
package main
