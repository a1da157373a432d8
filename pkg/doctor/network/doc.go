// Package network reads the configuration of a NetworkAttachmentDefinition as its plugins read it:
// each plugin by its own parser of pkg/netconf, and the addresses as whereabouts does, for each
// rail that the network can have. It opens no file, also none that the configuration names.
package network
