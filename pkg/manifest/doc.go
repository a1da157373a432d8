// Package manifest writes the NetworkAttachmentDefinitions of a cluster's rails, and a pod that
// asks for them. "railctl generate nads" uses it. The package reads nothing from the node or the
// cluster.
//
//	networks := manifest.Networks{Rails: "0-7", Range: "172.31.{rail}.0/24", Name: "rail-net", Type: manifest.HostDevice}
//	text, err := networks.YAML()
package manifest
