package resource

import (
	"fmt"
	"hash/crc32"
	"strings"
)

// These are the prefixes of the names of the sockets of rail-agent's device plugin. In the
// kubelet's directory device-plugins a socket is named "rail-cni-<resource>-<instance>.sock", and
// in its directory plugins_registry "rail-cni.io-<resource>-reg.sock". <resource> is the result of
// [FileName].
const (
	OwnSocket         = "rail-cni-"
	OwnRegistrySocket = "rail-cni.io-"
)

// FileName returns the resource's name in a form that can be part of a file name. A long name is
// cut and made unique.
func FileName(resource string) string {
	const maxName = 48
	name := strings.ReplaceAll(resource, "/", "-")
	if len(name) > maxName {
		name = fmt.Sprintf("%s-%08x", name[:maxName-9], crc32.ChecksumIEEE([]byte(resource)))
	}
	return name
}

// IsOwnSocket reports whether a socket with this name belongs to rail-agent's device plugin.
func IsOwnSocket(name string) bool {
	return strings.HasPrefix(name, OwnSocket) || strings.HasPrefix(name, OwnRegistrySocket)
}

// ServesResource reports whether a socket with this name belongs to rail-agent's device plugin and
// serves the resource.
func ServesResource(name, resource string) bool {
	rest, ok := strings.CutPrefix(name, OwnSocket)
	if !ok {
		rest, ok = strings.CutPrefix(name, OwnRegistrySocket)
	}
	end := strings.LastIndexByte(rest, '-') // the instance follows the last "-"
	return ok && end >= 0 && rest[:end] == FileName(resource)
}
