package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReturnedIsKeptUntilItsFileIsRemoved(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "state"))
	if all, errs := l.Returned(); len(all) != 0 || len(errs) != 0 {
		t.Errorf("at first: %v, %v", all, errs)
	}
	put := func(holder string, changed ...string) {
		t.Helper()
		if err := l.PutReturned("pci/0000:04:00.0", Returned{NIC: "ens1", Time: time.Now(), Holder: holder, Changed: changed}); err != nil {
			t.Fatal(err)
		}
	}
	put("first", "ethtool rings", "sysfs threaded")
	put("second", "ethtool rings", strings.Repeat("x", 5000))
	put("second", "ethtool rings", strings.Repeat("x", 5000)) // the same again
	all, errs := l.Returned()
	if len(all) != 1 || len(errs) != 0 {
		t.Fatalf("%v, %v", all, errs)
	}
	if r := all[0]; r.Holder != "second" || len(r.Changed) != 3 || r.Changed[0] != "sysfs threaded" || r.Changed[1] != "ethtool rings" || len(r.Changed[2]) != 256 {
		t.Errorf("%+v", r)
	}
	for i := range 100 {
		put("third", fmt.Sprint("setting ", i))
	}
	all, _ = l.Returned()
	if kept := all[0].Changed; len(kept) != 32 || kept[0] != "setting 68" || kept[31] != "setting 99" {
		t.Errorf("%d settings are kept, not the newest 32: %q", len(kept), kept)
	}
	if err := os.Remove(all[0].File); err != nil {
		t.Fatal(err)
	}
	if all, errs := l.Returned(); len(all) != 0 || len(errs) != 0 {
		t.Errorf("after its end: %v, %v", all, errs)
	}
}

func TestCorruptNoteOfAReturnHidesNoOther(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "state"))
	for _, nic := range []string{"a", "b"} {
		if err := l.PutReturned(nic, Returned{NIC: nic, Changed: []string{"x"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(l.Dir()+"/returned/a.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, errs := l.Returned(); len(all) != 1 || all[0].NIC != "b" || len(errs) != 1 {
		t.Errorf("%v, %v", all, errs)
	}
	// And it is overwritten by the next.
	if err := l.PutReturned("a", Returned{NIC: "a", Changed: []string{"y"}}); err != nil {
		t.Fatal(err)
	}
	if all, errs := l.Returned(); len(all) != 2 || len(errs) != 0 {
		t.Errorf("%v, %v", all, errs)
	}
}
