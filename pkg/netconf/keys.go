package netconf

import (
	"maps"
	"reflect"
	"slices"
	"strings"
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
		conf = whereaboutsIPAM{}
	default:
		return nil
	}
	return slices.Sorted(maps.Keys(keysOf(conf)))
}

// keysOf returns the JSON keys of a configuration. The keys of nested objects are "object.key" and
// "list[].key". keysOf does not look into types of other packages.
func keysOf(conf any) map[string]bool {
	keys := map[string]bool{}
	addKeys(keys, "", reflect.TypeOf(conf))
	return keys
}

func addKeys(keys map[string]bool, prefix string, of reflect.Type) {
	for i := range of.NumField() {
		f := of.Field(i)
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous {
			addKeys(keys, prefix, f.Type)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		key, inner := prefix+name, f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Slice {
			key, inner = key+"[]", inner.Elem()
		}
		// An unnamed struct type has no package path.
		ours := inner.PkgPath() == reflect.TypeOf(Common{}).PkgPath() || inner.Name() == ""
		if inner.Kind() == reflect.Struct && ours && inner != reflect.TypeOf(sloppyIP{}) && inner != reflect.TypeOf(Rail{}) {
			addKeys(keys, key+".", inner)
			continue
		}
		keys[strings.TrimSuffix(key, "[]")] = true
	}
}
