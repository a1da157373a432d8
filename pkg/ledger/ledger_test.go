package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

var update = flag.Bool("update", false, "write the golden files anew")

func open(t *testing.T, dir string) *Ledger {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// onTmpfs returns a state directory on a tmpfs of its own.
func onTmpfs(t *testing.T, size string) string {
	t.Helper()
	need.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// full returns a record with every field.
func full() *Record {
	at := time.Date(2026, 11, 21, 20, 0, 0, 123456789, time.UTC)
	pod := netns.ID{Inode: 4026532190, Cookie: 17}
	return &Record{
		Key: Key{ContainerID: "c1", IfName: "net1"}, Network: "roce-net1", Plugin: "host-device",
		Pod: &Pod{Namespace: "default", Name: "trainer-0", UID: "1b2c"}, Phase: Lent, Created: at,
		Netns: Netns{ID: pod, Path: "/run/netns/c1"}, HostNetns: Netns{ID: netns.ID{Inode: 4026531840, Cookie: 1}, Path: "/proc/1/ns/net"},
		Loan: &Loan{
			NIC: "pci 0000:3b:00.0 02:00:00:00:00:17", Name: "ens12np0", PCI: "0000:3b:00.0",
			Identity: link.Identity{ParentDev: "0000:3b:00.0", ParentBus: "pci", PermMAC: "02:00:00:00:00:17", Kind: "device", MAC: "02:00:00:00:00:17", Index: 4},
			Snapshot: &nicstate.Snapshot{
				Taken: at, Index: 4, Name: "ens12np0", AltNames: []string{"enp4s0np0"}, MTU: 9000, MAC: "02:00:00:00:00:17", TxQueueLen: 1000, Up: true,
				Flags: link.Flags{Multicast: true}, Settings: map[string]uint32{"gso_max_size": 65536},
				Addresses: []nicstate.Replay{{Text: "172.31.1.9/24 brd 172.31.1.255", Raw: []byte{2, 24, 128, 0, 4, 0, 0, 0}}},
				Routes:    []nicstate.Replay{{Text: "default via 172.31.1.1", Raw: []byte{2, 0}}},
				Sysctls:   map[string]string{"ipv4/conf/arp_ignore": "1"},
			},
		},
		RDMA: &RDMA{Mode: "shared", Devices: []RDMADevice{{
			Name: "mlx5_0", NodeGUID: ibaddr.GUID(0x1122334455667788), ParentDev: "0000:3b:00.0", Port: 1, Uverbs: "uverbs0",
		}}},
		MAC: "02:00:00:00:00:17", MTU: 9000, Addresses: []string{"172.31.1.2/24"},
		IPAM: &IPAM{Type: "whereabouts", Path: "/opt/cni/bin", Args: "K8S_POD_NAME=trainer-0", Config: json.RawMessage(`{"name":"roce-net1"}`)},
	}
}

// lending returns the first record of an ADD.
func lending(container, nic string) *Record {
	return &Record{
		Key: Key{ContainerID: container, IfName: "net1"}, Phase: Lending, Created: time.Now().UTC(),
		Loan: &Loan{NIC: nic, Name: nic, Snapshot: &nicstate.Snapshot{Name: nic}},
	}
}

func put(t *testing.T, l *Ledger, r *Record) {
	t.Helper()
	if err := l.Put(r); err != nil {
		t.Fatal(err)
	}
}

func fileOf(l *Ledger, k Key) string { return filepath.Join(l.attachments.Path(), recordName(k)) }

func TestRecordRoundTrip(t *testing.T) {
	l := open(t, t.TempDir())
	want := full()
	put(t, l, want)
	got, err := l.Get(want.Key)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		t.Errorf("came back as\n%s\nwas\n%s", a, b)
	}
	if got.Version != Version || time.Since(got.Updated) > time.Minute || time.Since(got.Updated) < 0 {
		t.Errorf("version %d, updated %v", got.Version, got.Updated)
	}
}

// TestRecordFormat pins the format that people and later versions read.
func TestRecordFormat(t *testing.T) {
	l := open(t, onTmpfs(t, "1m"))
	r := full()
	put(t, l, r)
	got, err := os.ReadFile(fileOf(l, r.Key))
	if err != nil {
		t.Fatal(err)
	}
	updated, err := json.Marshal(r.Updated)
	if err != nil {
		t.Fatal(err)
	}
	got = bytes.Replace(got, updated, []byte(`"2026-11-21T20:00:01Z"`), 1)
	var indented bytes.Buffer // in the form of the first versions, and for a readable diff
	if err := json.Indent(&indented, got, "", "  "); err != nil {
		t.Fatal(err)
	}
	got = indented.Bytes()
	golden := filepath.Join("testdata", "record.json")
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the record is now\n%s\nand was\n%s\n(go test -update, if that is meant: an older record must still be read)", got, want)
	}
	if _, err := Decode(want); err != nil {
		t.Errorf("the golden record is refused: %v", err)
	}
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rail-cni")
	old := unix.Umask(0)
	defer unix.Umask(old)
	if Exists(dir) {
		t.Error("a ledger that was never opened exists")
	}
	l := open(t, dir)
	if !Exists(dir) || l.Dir() != dir {
		t.Errorf("exists %v, at %s", Exists(dir), l.Dir())
	}
	put(t, l, lending("c1", "ens1"))
	if lock, err := l.TryLockAttachment(Key{"c1", "net1"}); err != nil {
		t.Error(err)
	} else {
		defer func() { _ = lock.Unlock() }()
	}
	seen := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() == fs.ModeSymlink {
			return err
		}
		info, err := e.Info()
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		if err == nil && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		seen++
		return err
	})
	if err != nil || seen != 6 {
		t.Errorf("%d files and directories, %v", seen, err)
	}
}

func TestStateDirectoryThatOthersMayWriteToIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if l, err := Open(dir); l != nil || failure.KindOf(err) != failure.IO || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v, %v", l, err)
	}
}

func TestKeysDoNotMeet(t *testing.T) {
	l := open(t, t.TempDir())
	long := strings.Repeat("0123456789abcdef", 20)
	keys := []Key{
		{"c1", "net1"},
		{"c1@net1", "x"},
		{"c1", "net1@x"},
		{"c1%40net1", "x"},
		{"../../etc", "passwd"},
		{".", ".."},
		{long, "net1"},
		{long, "net2"},
		{long + "0", "net1"},
	}
	for _, k := range keys {
		r := lending("", "nic of "+k.String())
		r.Key = k
		put(t, l, r)
	}
	for _, k := range keys {
		if r, err := l.Get(k); err != nil || r.Key != k {
			t.Errorf("%s: %+v, %v", k, r, err)
		}
		if r, err := l.HolderOf("nic of " + k.String()); err != nil || r == nil || r.Key != k {
			t.Errorf("the NIC of %s: %+v, %v", k, r, err)
		}
	}
	records, errs := l.List()
	if len(records) != len(keys) || len(errs) != 0 {
		t.Errorf("%d records, %v", len(records), errs)
	}
}

func TestWhatIsNoRecordOfTheKey(t *testing.T) {
	good := func(t *testing.T, change func(r *Record)) []byte {
		t.Helper()
		r := full()
		r.Version = Version
		change(r)
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	same := func(*Record) {}
	for _, c := range []struct {
		name  string
		data  func(t *testing.T) []byte
		newer bool
		text  string
	}{
		{"empty", func(*testing.T) []byte { return nil }, false, "unexpected end"},
		{"cut off", func(t *testing.T) []byte { return good(t, same)[:100] }, false, "unexpected end"},
		{"more after it", func(t *testing.T) []byte { return append(good(t, same), '{') }, false, "after top-level value"},
		{"no object", func(*testing.T) []byte { return []byte(`[]`) }, false, "array"},
		{"another type of a key", func(*testing.T) []byte { return []byte(`{"version":1,"containerID":7}`) }, false, "containerID"},
		{"no version", func(t *testing.T) []byte { return good(t, func(r *Record) { r.Version = 0 }) }, false, "no version"},
		{"no container id", func(t *testing.T) []byte { return good(t, func(r *Record) { r.ContainerID = "" }) }, false, "no container ID"},
		{"no loan and no child", func(t *testing.T) []byte { return good(t, func(r *Record) { r.Loan, r.RDMA = nil, nil }) }, false, "no loan, no child"},
		{"RDMA without devices", func(t *testing.T) []byte {
			return good(t, func(r *Record) { r.Loan, r.RDMA = nil, &RDMA{Mode: "exclusive"} })
		}, false, "no loan, no child"},
		{"no snapshot", func(t *testing.T) []byte { return good(t, func(r *Record) { r.Loan.Snapshot = nil }) }, false, "without a snapshot"},
		{"a snapshot without a name", func(t *testing.T) []byte { return good(t, func(r *Record) { r.Loan.Snapshot.Name = "" }) }, false, "without a snapshot"},
		{"of another key", func(t *testing.T) []byte { return good(t, func(r *Record) { r.ContainerID = "c2" }) }, false, "it is the record of c2/net1"},
		{"newer", func(t *testing.T) []byte { return good(t, func(r *Record) { r.Version = 2 }) }, true, "version 2"},
		{"newer, and another format", func(*testing.T) []byte { return []byte(`{"version":9,"containerID":7,"loan":[]}`) }, true, "version 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := open(t, t.TempDir())
			r := full()
			r.Phase = Lending // marks the NIC
			put(t, l, r)
			data := c.data(t)
			if err := os.WriteFile(fileOf(l, r.Key), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if holder, err := l.HolderOf(r.Loan.NIC); holder != nil || failure.KindOf(err) != failure.BadRecord || !strings.Contains(err.Error(), recordName(r.Key)) {
				t.Errorf("HolderOf: %v, %v: want an error that names the file", holder, err)
			}
			if records, errs := l.List(); len(records) != 0 || len(errs) != 1 {
				t.Errorf("List: %d records, %v", len(records), errs)
			}
			got, err := l.Get(r.Key)
			if got != nil || failure.KindOf(err) != failure.BadRecord || !strings.Contains(err.Error(), c.text) || IsNewer(err) != c.newer {
				t.Errorf("Get: %v, error %v (code %d, newer %v), want %q", got, err, cnierr.Code(err), IsNewer(err), c.text)
			}
			kept, globErr := filepath.Glob(filepath.Join(l.attachments.Path(), "*"))
			if globErr != nil || len(kept) != 1 {
				t.Fatalf("files: %q, %v", kept, globErr)
			}
			if now, readErr := os.ReadFile(kept[0]); readErr != nil || !bytes.Equal(now, data) {
				t.Errorf("its content was lost: %q, %v", now, readErr)
			}
			if aside := strings.Contains(kept[0], ".corrupt-"); aside == c.newer || aside && !strings.Contains(err.Error(), kept[0]) {
				t.Errorf("it lies at %s; the error: %v", kept[0], err)
			}
			if c.newer {
				return
			}
			// A record that was set aside blocks nothing.
			if _, err := l.Get(r.Key); !errors.Is(err, ErrNoRecord) {
				t.Errorf("Get again: %v", err)
			}
			if holder, err := l.HolderOf(r.Loan.NIC); holder != nil || err != nil {
				t.Errorf("HolderOf again: %v, %v", holder, err)
			}
			put(t, l, full())
		})
	}
}

// A record that cannot be read at the moment is not corrupt.
func TestARecordThatCannotBeReadNowIsLeftAlone(t *testing.T) {
	l := open(t, t.TempDir())
	r := full()
	put(t, l, r)
	// Allow no more open files.
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 0, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := l.Get(r.Key)
	if restoreErr := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); restoreErr != nil {
		t.Fatal(restoreErr)
	}
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrNoRecord) {
		t.Errorf("error %v", err)
	}
	if got, err := l.Get(r.Key); err != nil || got.Key != r.Key {
		t.Errorf("afterwards: %v, %v", got, err)
	}
}

func TestAPlantedLinkIsNoRecord(t *testing.T) {
	l := open(t, t.TempDir())
	other := lending("c2", "ens2")
	put(t, l, other)
	k := Key{"c1", "net1"}
	outside := filepath.Join(t.TempDir(), "outside.json")
	if err := os.Link(fileOf(l, other.Key), outside); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{outside, recordName(other.Key)} {
		if err := os.Symlink(target, fileOf(l, k)); err != nil {
			t.Fatal(err)
		}
		if r, err := l.Get(k); r != nil || err == nil {
			t.Errorf("a link to %s: %+v, %v", target, r, err)
		}
		_ = os.Remove(fileOf(l, k))
	}
	if r, err := l.Get(other.Key); err != nil || r.ContainerID != "c2" {
		t.Errorf("the other's record: %v, %v", r, err)
	}
}

func TestANICHasOneHolder(t *testing.T) {
	const nic = "net:[4026531840] ens1"
	for _, c := range []struct {
		name   string
		given  func(t *testing.T, l *Ledger)
		holder string // container, "" for none
	}{
		{"never lent", func(*testing.T, *Ledger) {}, ""},
		{"lending", func(t *testing.T, l *Ledger) { t.Helper(); put(t, l, lending("c1", nic)) }, "c1"},
		{"lent and returning", func(t *testing.T, l *Ledger) {
			t.Helper()
			r := lending("c1", nic)
			for _, r.Phase = range []Phase{Lending, Lent, Returning} {
				put(t, l, r)
			}
		}, "c1"},
		{"home, its address not yet free", func(t *testing.T, l *Ledger) {
			t.Helper()
			r := lending("c1", nic)
			for _, r.Phase = range []Phase{Lending, Lent, Freeing} {
				put(t, l, r)
			}
		}, ""},
		{"ended", func(t *testing.T, l *Ledger) {
			t.Helper()
			r := lending("c1", nic)
			put(t, l, r)
			for range 2 {
				if err := l.Remove(r); err != nil {
					t.Fatal(err)
				}
			}
		}, ""},
		{"killed between the mark and the record", func(t *testing.T, l *Ledger) {
			t.Helper()
			if err := l.nics.Symlink(recordName(Key{"c1", "net1"}), statefile.Name(nic)); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"killed between the end of the record and of the mark", func(t *testing.T, l *Ledger) {
			t.Helper()
			r := lending("c1", nic)
			put(t, l, r)
			if err := os.Remove(fileOf(l, r.Key)); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"the mark's attachment holds another NIC now", func(t *testing.T, l *Ledger) {
			t.Helper()
			put(t, l, lending("c1", nic))
			put(t, l, lending("c1", "another"))
		}, ""},
		{"the first freed it, and another took it", func(t *testing.T, l *Ledger) {
			t.Helper()
			r := lending("c1", nic)
			put(t, l, r)
			r.Phase = Freeing
			put(t, l, r)
			put(t, l, lending("c2", nic))
			// The end of the first must not remove the second's mark.
			if err := l.Remove(r); err != nil {
				t.Fatal(err)
			}
		}, "c2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := open(t, t.TempDir())
			c.given(t, l)
			r, err := l.HolderOf(nic)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if r != nil {
				got = r.ContainerID
			}
			if got != c.holder {
				t.Errorf("held by %q, want %q", got, c.holder)
			}
			// In any case the next loan takes the NIC.
			put(t, l, lending("c9", nic))
			if r, err := l.HolderOf(nic); err != nil || r == nil || r.ContainerID != "c9" {
				t.Errorf("after the next loan: %+v, %v", r, err)
			}
		})
	}
}

// The end of one loan races with the start of the next loan. The end must not remove the mark of
// the next loan, because without the mark the NIC could be lent twice. Only a record that is about
// to lend a NIC marks the NIC. A record that is being freed must not do that, because it would
// replace the mark of the next loan.
func TestOnlyALoanThatBeginsMarksItsNIC(t *testing.T) {
	const nic = "net:[7] ens1"
	l := open(t, t.TempDir())
	first, second := lending("c1", nic), lending("c2", nic)
	holder := func(want Key) {
		t.Helper()
		if got, err := l.HolderOf(nic); err != nil || got == nil || got.Key != want {
			t.Errorf("the holder is %+v, %v, want %s", got, err, want)
		}
	}
	put(t, l, first)
	holder(first.Key)
	put(t, l, second)
	holder(second.Key)
	first.Phase = Freeing
	put(t, l, first)
	holder(second.Key)
	put(t, l, &Record{Key: Key{"c3", "net1"}, Phase: Lending, Child: &Child{Master: "ens1"}})
	if err := l.Remove(first); err != nil {
		t.Fatal(err)
	}
	holder(second.Key)
	if err := l.Remove(second); err != nil {
		t.Fatal(err)
	}
	if marks, err := os.ReadDir(l.nics.Path()); err != nil || len(marks) != 0 {
		t.Errorf("marks that stay: %v, %v", marks, err)
	}
}

func TestClosedLedgerHasNoOpenDirectories(t *testing.T) {
	dir := t.TempDir()
	opened := func() (paths []string) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if path, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(path, dir) {
				paths = append(paths, path)
			}
		}
		return paths
	}
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(opened()) == 0 {
		t.Error("an open ledger has no open directory")
	}
	l.Close()
	if paths := opened(); len(paths) != 0 {
		t.Errorf("open: %q", paths)
	}
}

func TestALoanThatEndsLeavesTheNextOneItsMark(t *testing.T) {
	const nic, borrowers, loans = "net:[7] ens1", 8, 120
	dir := t.TempDir()
	open(t, dir)
	var all sync.WaitGroup
	for i := range borrowers {
		all.Go(func() {
			l, err := Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			l.attachments.Volatile()
			l.nics.Volatile()
			r := lending(fmt.Sprint("c", i), nic)
			for lent := 0; lent < loans && !t.Failed(); {
				lock, err := l.LockNIC(t.Context(), nic)
				if err != nil {
					t.Error(err)
					return
				}
				holder, err := l.HolderOf(nic)
				took := err == nil && holder == nil
				if took {
					err = l.Put(r)
				}
				if err = errors.Join(err, lock.UnlockAndRemove()); err != nil {
					t.Error(err)
				}
				if !took {
					runtime.Gosched()
					continue
				}
				for range 20 { // while the one before may still be ending
					if got, err := l.HolderOf(nic); err != nil || got == nil || got.Key != r.Key {
						t.Errorf("%s lent it, and it is lent to %v, %v", r.Key, got, err)
						break
					}
				}
				if err := l.Remove(r); err != nil {
					t.Error(err)
				}
				lent++
			}
		})
	}
	all.Wait()
}

func TestListGoesOnPastWhatItCannotRead(t *testing.T) {
	l := open(t, t.TempDir())
	at := time.Now().UTC()
	for i, container := range []string{"b", "c", "a"} {
		r := lending(container, "nic-"+container)
		r.Created = at.Add(-time.Duration(i) * time.Minute)
		put(t, l, r)
	}
	for name, text := range map[string]string{"bad.json": "{", "other@net1.json": "null", "note.txt": "hello"} {
		if err := os.WriteFile(filepath.Join(l.attachments.Path(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, errs := l.List()
	var got []string
	for _, r := range records {
		got = append(got, r.ContainerID)
	}
	if !slices.Equal(got, []string{"a", "c", "b"}) {
		t.Errorf("records of %q, want the oldest first", got)
	}
	if text := errors.Join(errs...).Error(); len(errs) != 2 || !strings.Contains(text, "bad.json") || !strings.Contains(text, "other@net1.json") {
		t.Errorf("errors:\n%s", text)
	}
	if left, err := filepath.Glob(filepath.Join(l.attachments.Path(), "*")); err != nil || len(left) != 6 {
		t.Errorf("listing changed the files: %q, %v", left, err)
	}
}

// An ADD lists all attachments of the node, to end those whose pod is gone. The
// list has no configurations, which may be large.
func BenchmarkListOf300(b *testing.B) {
	l, err := Open(filepath.Join(b.TempDir(), "state"))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for i := range 300 {
		r := full()
		r.ContainerID = fmt.Sprintf("%064x", i)
		if err := l.Put(r); err != nil {
			b.Fatal(err)
		}
	}
	lists := map[string]struct {
		list func() ([]*Record, []error)
		want int
	}{
		"all":  {l.List, 300},
		"none": {func() ([]*Record, []error) { return l.ListIf(func(r *Record) bool { return r.Phase == Freeing }) }, 0},
	}
	for name, c := range lists {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if records, errs := c.list(); len(records) != c.want || len(errs) > 0 {
					b.Fatal(len(records), errs)
				}
			}
		})
	}
}

// A network's name may look like a record's keys.
func TestListIfReturnsTheRecordsThatAreWanted(t *testing.T) {
	l := open(t, t.TempDir())
	for i, phase := range []Phase{Lent, Freeing, Lent, Freeing} {
		r := full()
		r.ContainerID, r.Phase = fmt.Sprint("c", i), phase
		r.Network = `x","phase":"freeing","loan":{"nic":"`
		if i > 1 {
			r.HostNetns = Netns{} // as in a record of an early version: decoded in full
		}
		put(t, l, r)
	}
	heads := 0
	records, errs := l.ListIf(func(r *Record) bool {
		if r.Loan == nil {
			heads++
		}
		return r.Phase == Freeing && r.Netns.Path == "/run/netns/c1"
	})
	var got []string
	for _, r := range records {
		got = append(got, r.ContainerID)
		if r.Loan == nil || r.Loan.Snapshot == nil || r.RDMA == nil {
			t.Errorf("the record of %s is incomplete: %+v", r.Key, r)
		}
	}
	if !slices.Equal(got, []string{"c1", "c3"}) || len(errs) > 0 || heads != 2 {
		t.Errorf("listed %q, %d heads, errors %v", got, heads, errs)
	}
}

// A record that is damaged below its head is reported if the record is wanted, and whenever all
// records are listed.
func TestListIfReportsADamagedRecordThatIsWanted(t *testing.T) {
	l := open(t, t.TempDir())
	r := full()
	put(t, l, r)
	path := fileOf(l, r.Key)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(data, []byte(`"snapshot"`), []byte(`"snapshot`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	for wanted, want := range map[bool]int{true: 1, false: 0} {
		records, errs := l.ListIf(func(*Record) bool { return wanted })
		if len(records) != 0 || len(errs) != want {
			t.Errorf("wanted %v: %d records, errors %v", wanted, len(records), errs)
		}
	}
	if _, errs := l.List(); len(errs) != 1 {
		t.Errorf("a list of all: errors %v, want one", errs)
	}
}

// A record whose head does not have the form of this version is reported, whether the record is
// wanted or not, because it is unknown what the record contains.
func TestListIfReportsARecordWithoutAHead(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"no phase":           func(r *Record) { r.Phase = "" },
		"no netns":           func(r *Record) { r.Netns = Netns{} },
		"no host netns":      func(r *Record) { r.HostNetns = Netns{} },
		"of another version": func(r *Record) { r.Version++ },
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, t.TempDir())
			r := full()
			put(t, l, r)
			change(r)
			data, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if head(data) != nil {
				t.Error("it has a head")
			}
			if err := os.WriteFile(fileOf(l, r.Key), data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, all := l.List()
			if _, errs := l.ListIf(func(*Record) bool { return false }); len(errs) != len(all) {
				t.Errorf("errors %v, those of a list of all are %v", errs, all)
			}
		})
	}
}

func TestAListHoldsNoConfigurations(t *testing.T) {
	l := open(t, t.TempDir())
	r := lending("c1", "ens1")
	r.IPAM = &IPAM{Type: "host-local", Path: "/opt/cni/bin", Config: []byte(`{"note":"` + strings.Repeat("x", 1<<20) + `"}`)}
	put(t, l, r)
	records, errs := l.List()
	if len(records) != 1 || len(errs) != 0 || records[0].IPAM == nil || records[0].IPAM.Type != "host-local" || len(records[0].IPAM.Config) != 0 {
		t.Errorf("%+v, %v", records, errs)
	}
	if got, err := l.Get(r.Key); err != nil || len(got.IPAM.Config) < 1<<20 {
		t.Errorf("the record itself lacks it: %v", err)
	}
}

func TestRecordsOfAnotherBoot(t *testing.T) {
	durable, volatile := open(t, testnet.OnDisk(t)), open(t, onTmpfs(t, "1m"))
	mine := lending("c1", "ens1")
	put(t, durable, mine)
	if got, err := durable.Get(mine.Key); err != nil || got.BootID == "" || !durable.OfThisBoot(got) {
		t.Errorf("a record of now: %+v, %v", got, err)
	}
	for _, c := range []struct {
		l    *Ledger
		boot string
		want bool
	}{
		{durable, durable.bootID, true},
		{durable, "another", false},
		{durable, "", true}, // moved here from a tmpfs
		{volatile, "", true},
		{volatile, "another", true},
	} {
		if got := c.l.OfThisBoot(&Record{BootID: c.boot}); got != c.want {
			t.Errorf("boot id %q in a ledger with %q: %v, want %v", c.boot, c.l.bootID, got, c.want)
		}
	}
	r := lending("c1", "ens1")
	put(t, volatile, r)
	if r.BootID != "" {
		t.Errorf("on a tmpfs the record has boot id %q", r.BootID)
	}
	// An unfinished release does not make it a record of this boot.
	old := lending("c2", "ens2")
	old.BootID, old.Phase = "another", Freeing
	put(t, durable, old)
	if got, err := durable.Get(old.Key); err != nil || durable.OfThisBoot(got) {
		t.Errorf("a record of another boot, written again: %+v, %v", got, err)
	}
}

// A configuration may be nested as deeply as JSON allows: the record stays
// small, or is refused before the NIC moves.
func TestWhatIsWrittenCanBeRead(t *testing.T) {
	l := open(t, t.TempDir())
	const deepest = 9000
	for name, c := range map[string]struct {
		config  string
		written bool
	}{
		"deep":  {`{"x":` + strings.Repeat("[", deepest) + strings.Repeat("]", deepest) + "}", true},
		"wide":  {`{"x":[[[[[` + strings.Repeat("1,", 500_000) + "1]]]]]}", true},
		"large": {`{"x":"` + strings.Repeat("x", 8<<20) + `"}`, false},
	} {
		r := full()
		r.ContainerID, r.IPAM.Config = name, json.RawMessage(c.config)
		err := l.Put(r)
		if (err == nil) != c.written {
			t.Errorf("%s: %v", name, err)
		}
		if !c.written {
			if _, err := os.Stat(fileOf(l, r.Key)); !errors.Is(err, fs.ErrNotExist) || failure.KindOf(l.Put(r)) != failure.IO {
				t.Errorf("%s: there is a file, %v", name, err)
			}
			continue
		}
		if info, err := os.Stat(fileOf(l, r.Key)); err != nil || info.Size() > int64(len(c.config))+10_000 {
			t.Errorf("%s: of a configuration of %d bytes the record is %d long, %v", name, len(c.config), info.Size(), err)
		}
		if got, err := l.Get(r.Key); err != nil || string(got.IPAM.Config) != c.config {
			t.Errorf("%s is not read as it was written: %v", name, err)
		}
	}
}

func TestAFullOrReadOnlyStateDirectory(t *testing.T) {
	dir := onTmpfs(t, "32k")
	l := open(t, dir)
	first := lending("c1", "ens1")
	put(t, l, first)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		r := full()
		r.Key, r.Phase, r.Loan.NIC = Key{strings.Repeat("x", i+1), "net1"}, Lending, strings.Repeat("n", i+1)
		r.Loan.Snapshot.Sysctls["filler"] = strings.Repeat("x", 4000)
		if err = l.Put(r); err != nil {
			if holder, holderErr := l.HolderOf(r.Loan.NIC); holder != nil || holderErr != nil {
				t.Errorf("what could not be recorded holds its NIC: %v, %v", holder, holderErr)
			}
			if _, getErr := l.Get(r.Key); !errors.Is(getErr, ErrNoRecord) {
				t.Errorf("what could not be recorded has a record: %v", getErr)
			}
		}
	}
	if !errors.Is(err, unix.ENOSPC) || failure.KindOf(err) != failure.IO || !strings.Contains(err.Error(), "free space") {
		t.Fatalf("a full file system: %v", err)
	}
	if err := l.Remove(first); err != nil {
		t.Errorf("an attachment cannot end when the file system is full: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := l.Put(lending("c2", "ens2")); !errors.Is(err, unix.EROFS) || failure.KindOf(err) != failure.IO {
		t.Errorf("a read-only file system: %v (code %d)", err, cnierr.Code(err))
	}
	if _, errs := l.List(); len(errs) != 0 {
		t.Errorf("reading it: %v", errs)
	}
}

func TestLocksOfTheLedger(t *testing.T) {
	l := open(t, t.TempDir())
	k := Key{"c1", "net1"}
	held, err := l.LockAttachment(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryLockAttachment(k); !errors.Is(err, statefile.ErrBusy) {
		t.Errorf("a second one: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := l.LockAttachment(ctx, k); failure.KindOf(err) != failure.TryAgain {
		t.Errorf("a second one that waits: %v", err)
	}
	// Others do not match: another attachment, a NIC of that name, RDMA.
	other, err := l.TryLockAttachment(Key{"c1", "net2"})
	if err != nil {
		t.Fatal(err)
	}
	nic, err := l.LockNIC(t.Context(), k.String())
	if err != nil {
		t.Fatal(err)
	}
	rdmaLock, err := l.LockRDMA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, lock := range []*statefile.Lock{other, nic, rdmaLock, held} {
		if err := lock.UnlockAndRemove(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(l.locks.Path()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWhoHoldsWhat(t *testing.T) {
	for _, c := range []struct {
		r           *Record
		holder, nic string
	}{
		{full(), "pod default/trainer-0 (container c1, interface net1)", "ens12np0"},
		{lending("c1", "ens1"), "container c1, interface net1", "ens1"},
		{&Record{Loan: &Loan{PCI: "0000:3b:00.0", Driver: "vfio-pci"}}, "container , interface ", "0000:3b:00.0"},
		{&Record{Child: &Child{Master: "ens2"}}, "container , interface ", "ens2"},
		{&Record{}, "container , interface ", ""},
	} {
		if c.r.Holder() != c.holder || c.r.NICName() != c.nic {
			t.Errorf("%q holds %q, want %q and %q", c.r.Holder(), c.r.NICName(), c.holder, c.nic)
		}
	}
}

func FuzzDecode(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "record.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add([]byte(`{"version":1,"containerID":"c","ifname":"n","child":{}}`))
	f.Add([]byte(`{"version":1,"containerID":"c","ifname":"n","loan":{"driver":"vfio-pci"}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"loan":{"snapshot":{"addresses":[{"raw":"AA=="}]}}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		if err != nil {
			if r != nil {
				t.Error("a record and an error")
			}
			return
		}
		_, _ = r.Holder(), r.NICName()
		if r.Loan != nil && r.Loan.Snapshot != nil {
			r.Loan.Snapshot.Carried()
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("it cannot be written again: %v", err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("written again it is refused: %v\n%s", err, again)
		}
	})
}

func TestRecordsOfAContainer(t *testing.T) {
	l := open(t, t.TempDir())
	put := func(container, ifName string) {
		t.Helper()
		if err := l.Put(&Record{Key: Key{container, ifName}, Phase: Lent, Child: &Child{Master: "ens1"}, IPAM: &IPAM{Config: []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("c", 180)
	hashed := strings.Repeat("h", 240) // names of files have a hash in place of its end
	for _, container := range []string{"c1", "c10", "c1@", long, hashed} {
		put(container, "net1")
		put(container, "net2")
	}
	for container, want := range map[string]int{"c1": 2, "c10": 2, "c1@": 2, "c": 0, "": 0, long: 2, long[:179]: 0, hashed: 2, hashed[:239]: 0} {
		records, errs := l.ofContainer(container)
		if len(errs) > 0 || len(records) != want {
			t.Errorf("%q: %d records, %v", container, len(records), errs)
		}
		for _, r := range records {
			if r.ContainerID != container || r.IPAM.Config != nil {
				t.Errorf("%q: got %+v", container, r)
			}
		}
	}
}
