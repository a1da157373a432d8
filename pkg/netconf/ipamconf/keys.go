package ipamconf

import (
	"maps"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/netconf/document"
)

// Keys returns the JSON keys of whereabouts' "ipam" object, and those that the plugin reads beside it.
func Keys() (ipam, beside map[string]bool) {
	beside = document.Keys(whereaboutsNet{}, sloppyIP{})
	maps.DeleteFunc(beside, func(key string, _ bool) bool { return strings.HasPrefix(key, "ipam.") })
	return document.Keys(whereaboutsIPAM{}, sloppyIP{}), beside
}
