package versions

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

var freeze = flag.String("freeze", "", "write the state of this version, such as v0.2.0, to integration/versions/testdata")

// Files returns the paths of a state file by the versions that wrote it. The test fails if there is
// none.
func Files(t testing.TB, name string) map[string]string {
	t.Helper()
	dir := filepath.Join(top(t), "integration", "versions", "testdata")
	paths, err := filepath.Glob(filepath.Join(dir, "v*", name))
	if err != nil {
		t.Fatal(err)
	}
	if *freeze != "" {
		paths = append(paths, filepath.Join(dir, *freeze, name))
	}
	if len(paths) == 0 {
		t.Fatalf("no version has %s in integration/versions/testdata", name)
	}
	files := map[string]string{}
	for _, path := range paths {
		files[filepath.Base(filepath.Dir(path))] = path
	}
	return files
}

// top returns the top of the checkout. Tests run in the directory of their package.
func top(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "integration", "versions")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("the test does not run in a checkout")
	return ""
}

// Kept tests that the file which each version wrote is read by this one, and that nothing of it is
// lost: what read returns has each key and value of the file. sample is what this version writes,
// with every key; -freeze writes it as the file of a version.
func Kept(t *testing.T, name string, sample any, read func(data []byte) (any, error)) {
	t.Helper()
	for version, path := range Files(t, name) {
		Freeze(t, path, sample)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		have, err := read(data)
		if err != nil {
			t.Errorf("%s of %s is refused: %v", name, version, err)
			continue
		}
		again, err := json.Marshal(have)
		if err != nil {
			t.Fatal(err)
		}
		var before, after any
		if err := unmarshal(data, &before); err != nil {
			t.Fatal(err)
		}
		if err := unmarshal(again, &after); err != nil {
			t.Fatal(err)
		}
		lost(t, fmt.Sprintf("%s of %s", name, version), before, after)
	}
}

// Freeze writes the file of a version if it is of the one that -freeze names.
func Freeze(t testing.TB, path string, sample any) {
	t.Helper()
	if *freeze == "" || filepath.Base(filepath.Dir(path)) != *freeze {
		return
	}
	text, err := json.MarshalIndent(sample, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// By a rename: a test beside this one may read or write it.
	dir, err := os.MkdirTemp(filepath.Dir(path), "new")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "new"), append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "new"), path); err != nil {
		t.Fatal(err)
	}
}

// unmarshal keeps numbers as they are written.
func unmarshal(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(into)
}

// lost fails for each key and value of before that after does not have. after may have more keys.
func lost(t *testing.T, path string, before, after any) {
	t.Helper()
	switch before := before.(type) {
	case map[string]any:
		now, _ := after.(map[string]any)
		for key, value := range before {
			if have, ok := now[key]; !ok {
				t.Errorf("%s: this version loses the key %q: read it, at least to end what the state names (docs/reference/versions.md)", path, key)
			} else {
				lost(t, path+": "+key, value, have)
			}
		}
	case []any:
		now, _ := after.([]any)
		if len(now) != len(before) {
			t.Errorf("%s: it has %d entries, this version reads %d", path, len(before), len(now))
			return
		}
		for i := range before {
			lost(t, fmt.Sprintf("%s[%d]", path, i), before[i], now[i])
		}
	default:
		if !reflect.DeepEqual(before, after) {
			t.Errorf("%s: it is %v, this version reads %v", path, before, after)
		}
	}
}

// Fill sets each exported field of what the pointer leads to that is zero, so that each key is
// written: one entry for each list and map.
func Fill(t testing.TB, pointer any) {
	t.Helper()
	fill(t, reflect.ValueOf(pointer).Elem(), "filled")
}

// values are those of types that have a text of their own.
var values = map[reflect.Type]any{
	reflect.TypeFor[time.Time]():       time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	reflect.TypeFor[netip.Addr]():      netip.MustParseAddr("10.0.0.7"),
	reflect.TypeFor[netip.Prefix]():    netip.MustParsePrefix("10.0.0.0/28"),
	reflect.TypeFor[json.RawMessage](): json.RawMessage(`{"name":"net"}`),
}

func fill(t testing.TB, v reflect.Value, name string) {
	t.Helper()
	if value, ok := values[v.Type()]; ok {
		if v.IsZero() {
			v.Set(reflect.ValueOf(value))
		}
		return
	}
	switch {
	case v.IsZero() || v.Kind() == reflect.Struct || v.Kind() == reflect.Pointer:
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			fill(t, v.Index(i), name)
		}
		return
	default:
		return
	}
	_, isText := v.Addr().Interface().(encoding.TextUnmarshaler)
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(t, v.Elem(), name)
	case reflect.Struct:
		if isText {
			t.Fatalf("%s: set %s by hand", name, v.Type())
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Tag.Get("json") != "-" {
				fill(t, v.Field(i), f.Name)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0), name)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key, name)
		fill(t, value, name)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
		t.Fatalf("%s: %s cannot be filled", name, v.Type())
	}
}
