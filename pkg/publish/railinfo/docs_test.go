package railinfo

import (
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
)

const page = "docs/reference/rails-json.md"

// keysOf adds the JSON keys of a struct. The keys of nested structs are "object.key" and
// "list[].key".
func keysOf(keys map[string]bool, prefix string, of reflect.Type) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner, below := f.Type, prefix+name+"."
		if inner.Kind() == reflect.Slice {
			inner, below = inner.Elem(), prefix+name+"[]."
		}
		if inner.Kind() == reflect.Struct && name != "rails" {
			keysOf(keys, below, inner)
			continue
		}
		keys[prefix+name] = true
	}
}

func TestPageOfTheDocumentHasEveryKey(t *testing.T) {
	code, documented := map[string]bool{}, map[string]bool{}
	keysOf(code, "", reflect.TypeFor[Rails]())
	keysOf(code, "", reflect.TypeFor[Rail]())
	for _, row := range docs.Rows(docs.Section(t, page, "The document")) {
		for _, key := range docs.Code(row[0]) {
			documented[key] = true
		}
	}
	for key := range code {
		if !documented[key] {
			t.Errorf("%s has no %s", page, key)
		}
	}
	for key := range documented {
		if !code[key] {
			t.Errorf("%s has %s, which the code has not", page, key)
		}
	}
}

// The guide must have each variable that may be set.
func TestGuideHasEveryVariable(t *testing.T) {
	r := sixteen(t)
	r.Rails = r.Rails[:1]
	l := &r.Rails[0]
	documented := map[string]bool{}
	for _, row := range docs.Rows(docs.Section(t, "docs/guide/nccl.md", "Variables")) {
		documented[docs.Code(row[0])[0]] = true
	}
	set := map[string]bool{}
	s := Settings{Env: []Family{NCCL, UCX, NVSHMEM, VLLM}, Mount: true, Isolated: true, FixedGIDIndex: true}
	for _, change := range []func(){func() {}, func() {
		l.Addresses, l.GIDs, l.GIDIndexV2 = nil, nil, nil
		withAddress(l, "fd00::1", 0, both[0])
	}, func() {
		withAddress(l, "10.0.0.1", 2, both...)
	}, func() {
		l.SharedPort, s.FixedGIDIndex = true, false
	}, func() {
		l.LinkLayer, l.PKey, l.PKeyIndex = InfiniBand, "0x8001", &[]int{1}[0]
	}} {
		change()
		for _, v := range r.Env(s) {
			set[v.Name] = true
		}
	}
	for name := range set {
		if !documented[name] {
			t.Errorf("the guide has no %s", name)
		}
	}
	for name := range documented {
		if !set[name] {
			t.Errorf("the guide has %s, which was not set", name)
		}
	}
}
