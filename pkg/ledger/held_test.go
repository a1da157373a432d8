package ledger

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// TestHeldLeavesOutWhatIsHeldNoMore has records of two boots, host netns and pods in every phase.
func TestHeldLeavesOutWhatIsHeldNoMore(t *testing.T) {
	l := open(t, testnet.OnDisk(t))
	mine, other := full().HostNetns, Netns{ID: netns.ID{Inode: 4026532999, Cookie: 99}, Path: "/run/netns/other"}
	for _, boot := range []string{"now", "earlier"} {
		for _, host := range []string{"mine", "other"} {
			for _, phase := range []Phase{Lending, Lent, Returning, Freeing} {
				r := full()
				r.ContainerID, r.Phase, r.HostNetns = fmt.Sprintf("%s-%s-%s", boot, host, phase), phase, mine
				if boot == "earlier" {
					r.BootID = "another"
				}
				if host == "other" {
					r.HostNetns = other
				}
				if phase == Returning {
					r.Netns.ID = netns.ID{Inode: 4026532191, Cookie: 18}
				}
				put(t, l, r)
			}
		}
	}
	all := func(*Record) bool { return true }
	lent := func(r *Record) bool { return r.Phase == Lent }
	cache := l.NewCache()
	for _, c := range []struct {
		name string
		list func() ([]*Record, []error)
		want []string
	}{
		{"Held", func() ([]*Record, []error) { return l.Held(mine.ID, all) }, []string{"now-mine-lending", "now-mine-lent", "now-mine-returning"}},
		{"Held lent", func() ([]*Record, []error) { return l.Held(mine.ID, lent) }, []string{"now-mine-lent"}},
		{"Held anywhere", func() ([]*Record, []error) { return l.Held(Anywhere, lent) }, []string{"now-mine-lent", "now-other-lent"}},
		{"HeldIf", func() ([]*Record, []error) { return l.HeldIf(other.ID, all) }, []string{
			"now-other-lending", "now-other-lent", "now-other-returning",
		}},
		{"HeldIn", func() ([]*Record, []error) { return l.HeldIn(netns.ID{Inode: 4026532191, Cookie: 18}) }, []string{"now-mine-returning", "now-other-returning"}},
		{"SinceBoot", l.SinceBoot, []string{
			"now-mine-freeing", "now-mine-lending", "now-mine-lent", "now-mine-returning",
			"now-other-freeing", "now-other-lending", "now-other-lent", "now-other-returning",
		}},
		{"Cache.Held", func() ([]*Record, []error) { return cache.Held(mine.ID, all) }, []string{"now-mine-lending", "now-mine-lent", "now-mine-returning"}},
		{"Cache.Held again", func() ([]*Record, []error) { return cache.Held(Anywhere, lent) }, []string{"now-mine-lent", "now-other-lent"}},
		{"Cache.HeldBy", func() ([]*Record, []error) { return cache.HeldBy("now-mine-lent", mine.ID, all) }, []string{"now-mine-lent"}},
		{"Cache.HeldBy of another", func() ([]*Record, []error) { return cache.HeldBy("now-other-lent", mine.ID, all) }, nil},
	} {
		records, errs := c.list()
		var got []string
		for _, r := range records {
			got = append(got, r.ContainerID)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) || len(errs) > 0 {
			t.Errorf("%s: %q, errors %v, want %q", c.name, got, errs, c.want)
		}
	}
	for id, want := range map[string]struct{ holds, ofMine bool }{
		"now-mine-lent": {true, true}, "now-mine-freeing": {false, true}, "now-other-lent": {true, false}, "now-other-freeing": {false, false},
		"earlier-mine-lent": {false, true}, "earlier-other-lent": {false, true},
	} {
		r, err := l.Get(Key{id, "net1"})
		if err != nil {
			t.Fatal(err)
		}
		if l.Holds(r) != want.holds || l.OfHost(r, mine.ID) != want.ofMine {
			t.Errorf("%s: holds %v, of the host %v, want %+v", id, l.Holds(r), l.OfHost(r, mine.ID), want)
		}
	}
}

// A record that cannot be read may be the record of an attachment that holds something.
func TestHeldReportsRecordsThatCannotBeRead(t *testing.T) {
	l := open(t, t.TempDir())
	r := full()
	put(t, l, r)
	if err := os.WriteFile(fileOf(l, r.Key), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := func(*Record) bool { return true }
	cache := l.NewCache()
	for name, list := range map[string]func() ([]*Record, []error){
		"Held":         func() ([]*Record, []error) { return l.Held(r.HostNetns.ID, all) },
		"HeldIf":       func() ([]*Record, []error) { return l.HeldIf(Anywhere, all) },
		"HeldIn":       func() ([]*Record, []error) { return l.HeldIn(r.Netns.ID) },
		"SinceBoot":    l.SinceBoot,
		"Cache.Held":   func() ([]*Record, []error) { return cache.Held(Anywhere, all) },
		"Cache.HeldBy": func() ([]*Record, []error) { return cache.HeldBy(r.ContainerID, Anywhere, all) },
	} {
		if records, errs := list(); len(records) != 0 || len(errs) != 1 {
			t.Errorf("%s: %d records, errors %v, want one", name, len(records), errs)
		}
	}
}

// A record of an earlier boot has no living pod netns, although a netns of this boot may have the same
// numbers.
func TestAPodOfAnEarlierBootIsNotAlive(t *testing.T) {
	l := open(t, testnet.OnDisk(t))
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	r := &Record{BootID: l.bootID, Netns: Netns{ID: here.ID, Path: "/proc/self/ns/net"}}
	if !l.Alive(r) {
		t.Error("the netns of this process does not exist")
	}
	r.BootID = strings.Repeat("0", 36)
	if l.Alive(r) {
		t.Error("a netns of an earlier boot exists")
	}
}
