// Whereabouts is an IPAM plugin that reads the configuration of the plugin of the same
// name. Package pkg/whereabouts/plugin has the verbs.
package main
