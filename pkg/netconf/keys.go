package netconf

import (
	"maps"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
)

// Keys returns the sorted keys of the configuration of host-device, sriov, ib-sriov, macvlan, ipoib or rdma, or the
// sorted keys of the "ipam" object of whereabouts. It returns nil for another plugin. A key of a nested object is
// "object.key". A key of the objects in a list is "list[].key".
func Keys(plugin string) []string {
	var conf any
	switch plugin {
	case "host-device":
		conf = HostDevice{}
	case "sriov":
		conf = SRIOV{}
	case "ib-sriov":
		conf = IBSRIOV{}
	case "macvlan":
		conf = Macvlan{}
	case "ipoib":
		conf = IPoIB{}
	case "rdma":
		conf = RDMAChained{}
	case "whereabouts":
		keys, _ := ipamconf.Keys()
		return slices.Sorted(maps.Keys(keys))
	default:
		return nil
	}
	return slices.Sorted(maps.Keys(keysOf(conf)))
}

// keysOf returns the JSON keys of a configuration.
func keysOf(conf any) map[string]bool { return document.Keys(conf, Rail{}) }
