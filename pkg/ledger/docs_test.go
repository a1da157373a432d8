package ledger

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
)

const formatPage = "docs/reference/record-format.md"

// TestRecordFormatPageHasEveryKey compares the tables of the page with the fields of a
// record and of a note.
func TestRecordFormatPageHasEveryKey(t *testing.T) {
	for _, of := range []struct {
		what     string
		sections []string
		value    any
	}{
		{"record", []string{"The attachment", "loan: a NIC that is lent", "loan.snapshot: how the NIC was", "child: a macvlan or an IPoIB child that was made", "vf: settings of a virtual function", "rdma: RDMA devices"}, Record{}},
		{"note", []string{"Notes of returned NICs"}, Returned{}},
	} {
		documented := map[string]bool{}
		for _, section := range of.sections {
			for _, row := range docs.Rows(docs.Section(t, formatPage, section)) {
				for _, key := range docs.Code(row[0]) {
					if documented[key] {
						t.Errorf("%s has %s twice", formatPage, key)
					}
					documented[key] = true
				}
			}
		}
		code := map[string]bool{}
		addKeys(code, "", reflect.TypeOf(of.value))
		for _, key := range slices.Sorted(maps.Keys(code)) {
			if !documented[key] {
				t.Errorf("%s: the %s's key %s is missing", formatPage, of.what, key)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(documented)) {
			if !code[key] {
				t.Errorf("%s: a %s has no key %s", formatPage, of.what, key)
			}
		}
	}
}

// addKeys adds the JSON keys of a struct. It adds the keys of nested structs as "object.key" and
// "list[].key".
func addKeys(keys map[string]bool, prefix string, of reflect.Type) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous:
			addKeys(keys, prefix, inner)
			continue
		}
		key := prefix + name
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		list := inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct
		if list {
			inner = inner.Elem()
		}
		switch {
		case inner.Kind() != reflect.Struct || !strings.Contains(inner.PkgPath(), "/rail-cni/"):
			keys[key] = true
		case list:
			addKeys(keys, key+"[].", inner)
		default:
			addKeys(keys, key+".", inner)
		}
	}
}

func TestRecordFormatPageHasTheVersionAndPhases(t *testing.T) {
	if want := fmt.Sprintf("`version` is %d.", Version); !strings.Contains(docs.Section(t, formatPage, "Versions"), want) {
		t.Errorf("%s does not say %q", formatPage, want)
	}
	for _, p := range []Phase{Lending, Lent, Returning, Freeing} {
		if !strings.Contains(docs.Section(t, formatPage, "The attachment"), "`"+string(p)+"`") {
			t.Errorf("%s does not name the phase %s", formatPage, p)
		}
	}
}
