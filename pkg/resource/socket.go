package resource

import (
	"fmt"
	"hash/crc32"
	"strings"
)

// The beginnings of the names of the sockets of rail-agent's device plugin: in the kubelet's
// device-plugins "rail-cni-<resource>-<instance>.sock", in its plugins_registry
// "rail-cni.io-<resource>-reg.sock". The resource is as [FileName] writes it.
const (
	OwnSocket         = "rail-cni-"
	OwnRegistrySocket = "rail-cni.io-"
)

// FileName returns the resource's name as a part of a file's name, cut and made unique if
// it is long.
func FileName(resource string) string {
	const most = 48
	name := strings.ReplaceAll(resource, "/", "-")
	if len(name) > most {
		name = fmt.Sprintf("%s-%08x", name[:most-9], crc32.ChecksumIEEE([]byte(resource)))
	}
	return name
}

// IsOwnSocket reports whether a name is that of a socket of rail-agent's device plugin.
func IsOwnSocket(name string) bool {
	return strings.HasPrefix(name, OwnSocket) || strings.HasPrefix(name, OwnRegistrySocket)
}

// ServesResource reports whether a name is that of a socket of rail-agent's device plugin
// for the resource.
func ServesResource(name, resource string) bool {
	rest, ours := strings.CutPrefix(name, OwnSocket)
	if !ours {
		rest, ours = strings.CutPrefix(name, OwnRegistrySocket)
	}
	end := strings.LastIndexByte(rest, '-') // before the instance
	return ours && end >= 0 && rest[:end] == FileName(resource)
}
