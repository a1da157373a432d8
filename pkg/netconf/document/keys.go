package document

import (
	"reflect"
	"slices"
	"strings"
)

// Keys returns the JSON keys of a configuration. The keys of nested objects are "object.key" and
// "list[].key". Keys does not look into types of other packages than conf's, nor into the types of
// values.
func Keys(conf any, values ...any) map[string]bool {
	r := reader{keys: map[string]bool{}, pkg: reflect.TypeOf(conf).PkgPath()}
	for _, v := range values {
		r.values = append(r.values, reflect.TypeOf(v))
	}
	r.add("", reflect.TypeOf(conf))
	return r.keys
}

// reader collects the keys of a configuration.
type reader struct {
	keys   map[string]bool
	pkg    string // whose types are opened
	values []reflect.Type
}

func (r reader) add(prefix string, typ reflect.Type) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous {
			r.add(prefix, f.Type)
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
		local := inner.PkgPath() == r.pkg || inner.Name() == ""
		if inner.Kind() == reflect.Struct && local && !slices.Contains(r.values, inner) {
			r.add(key+".", inner)
			continue
		}
		r.keys[strings.TrimSuffix(key, "[]")] = true
	}
}
