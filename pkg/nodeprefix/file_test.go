package nodeprefix_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodeprefix"
)

var reading = &netconf.NodeFile{PrefixesFrom: []string{netconf.NVIPAM}}

func TestPrefixesOfPools(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if _, err := nodeprefix.Of(dir, reading, "rail-0"); !errors.Is(err, failure.TryAgain) || !strings.Contains(err.Error(), "has not written the node's prefixes yet") {
		t.Errorf("without a file: %v", err)
	}
	pools := &nodeprefix.Pools{Node: "node1", Pools: []nodeprefix.Pool{
		{Name: "rail-1", Namespace: "nv", Problem: "its status has no allocation for the node"},
		{Name: "rail-0", Namespace: "nv", Prefix: "10.0.4.8/31", Gateway: "10.0.4.8", Exclude: []string{"10.0.4.8/32"}, Routes: []string{"10.0.0.0/8"}},
		{Name: "twice", Namespace: "b", Prefix: "10.9.0.0/31"},
		{Name: "twice", Namespace: "a", Prefix: "10.9.0.2/31"},
		{Name: "twice", Namespace: "c", Problem: "none"},
		{Name: "rail-0", Namespace: "mallory", Problem: "its status has no allocation for the node"},
		{Name: "rail-3", Namespace: "mallory", Problem: "one"},
		{Name: "rail-3", Namespace: "nv", Problem: "another"},
	}}
	for range 2 {
		if err := pools.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	want := &netconf.NodePrefix{Prefix: "10.0.4.8/31", Gateway: "10.0.4.8", Exclude: []string{"10.0.4.8/32"}, Routes: []string{"10.0.0.0/8"}}
	if got, err := nodeprefix.Of(dir, reading, "rail-0"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for pool, c := range map[string]struct {
		kind failure.Kind
		text string
	}{
		"rail-1": {failure.NotAvailable, `the node node1 has no prefix of the CIDRPool nv/rail-1: its status has no allocation for the node; see the pool's "nodeSelector"`},
		"rail-3": {failure.NotAvailable, "no prefix of the CIDRPool mallory/rail-3: one, nor of nv/rail-3: another; see"},
		"rail-2": {failure.InvalidConfig, `nv-ipam has no CIDRPool "rail-2"; see "kubectl get cidrpools`},
		"twice":  {failure.InvalidConfig, `nv-ipam has CIDRPools "twice" in the namespaces a, b; delete those`},
	} {
		if got, err := nodeprefix.Of(dir, reading, pool); failure.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %+v, %v, want %q", pool, got, err, c.text)
		}
	}
	// What the administrator has turned off is not used, also if the file is still there.
	for _, file := range []*netconf.NodeFile{nil, {}} {
		if _, err := nodeprefix.Of(dir, file, "rail-0"); failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), `"prefixesFrom: [nv-ipam]"`) {
			t.Errorf("turned off: %v", err)
		}
	}
}

func TestDamagedFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := (&nodeprefix.Pools{}).Write(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "prefixes", "nv-ipam.json")
	for _, text := range []string{"", "{", "[]", "{}", `{"schema":"rail-cni.io/prefixes/v2"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := nodeprefix.Of(dir, reading, "a"); failure.KindOf(err) != failure.BadRecord || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%q: %v", text, err)
		}
	}
	// It is written again, and removed as often as one likes.
	if err := (&nodeprefix.Pools{Node: "n"}).Write(dir); err != nil {
		t.Fatal(err)
	}
	if p, err := nodeprefix.Read(dir); err != nil || p.Node != "n" {
		t.Errorf("%+v, %v", p, err)
	}
	for range 2 {
		if err := nodeprefix.Remove(dir); err != nil {
			t.Error(err)
		}
		if _, err := nodeprefix.Read(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	if err := nodeprefix.Remove(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}
