package configs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// foreignKeys are keys that the runtime, libcni or Multus reads rather than the plugin.
var foreignKeys = []string{"capabilities", "args", "cniVersions", "disableCheck", "disableGC", "runtimeConfig", "ipam", "dns"}

// unknownKeys returns a sentence for each key that the plugin does not know.
func unknownKeys(p *network.Plugin) []string {
	var conf map[string]json.RawMessage
	if p.Kind == "" || json.Unmarshal(p.Raw, &conf) != nil {
		return nil
	}
	known := append(netconf.Keys(p.Kind), foreignKeys...)
	found := unknownIn("", conf, known)
	for name, raw := range conf {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			continue
		}
		switch {
		case strings.EqualFold(name, "ipam") && p.Common != nil && strings.HasSuffix(p.Common.IPAM.Type, network.Whereabouts):
			found = append(found, unknownIn("ipam.", object, netconf.Keys("whereabouts"))...)
		case strings.EqualFold(name, "runtimeConfig"):
			found = append(found, unknownIn("runtimeConfig.", object, append(below("runtimeConfig", netconf.Keys(p.Kind)), "portMappings", "bandwidth", "infinibandGUID"))...)
		}
	}
	slices.Sort(found)
	return found
}

// below returns the keys that begin with the object's name and a dot, without this prefix.
func below(object string, keys []string) []string {
	var all []string
	for _, key := range keys {
		if rest, ok := strings.CutPrefix(key, object+"."); ok {
			all = append(all, rest)
		}
	}
	return all
}

// unknownIn returns a sentence for each key of the object that is not among the known keys. As in
// encoding/json, the case of a key does not matter. If a known key has dots, only the name before
// the first dot is compared.
func unknownIn(prefix string, object map[string]json.RawMessage, known []string) []string {
	tops := map[string]bool{}
	for _, key := range known {
		top, _, _ := strings.Cut(strings.ReplaceAll(key, "[]", ""), ".")
		tops[top] = true
	}
	names := slices.Sorted(maps.Keys(tops))
	var found []string
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if strings.HasPrefix(key, "cni.dev/") || slices.ContainsFunc(names, func(k string) bool { return strings.EqualFold(k, key) }) {
			continue
		}
		found = append(found, fmt.Sprintf("the key %q is unknown: %s", prefix+key, resource.Suggestion(key, names)))
	}
	return found
}
