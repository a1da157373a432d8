package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/versions"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// samples returns a record of each kind of attachment, and one with every key.
func samples(t *testing.T) map[string]*Record {
	t.Helper()
	of := func(plugin string, change func(*Record)) *Record {
		r := full()
		r.Version, r.Plugin, r.Updated = Version, plugin, r.Created.Add(time.Second)
		r.RDMA.Mode, r.Rail = "shared", new(int)
		change(r)
		return r
	}
	all := map[string]*Record{
		"host-device": of("host-device", func(*Record) {}),
		"host-device-exclusive": of("host-device", func(r *Record) {
			r.RDMA.Mode, r.RDMA.Devices[0].Lent, r.MovedMS = "exclusive", true, 41
			r.RDMA.Devices[0].Settings = map[string]string{"adaptive-moderation": "on"}
		}),
		"host-device-infiniband": of("host-device", func(r *Record) {
			r.RDMA.Mode, r.RDMA.Devices[0].Lent = "exclusive", true
			r.Loan.Snapshot.IPoIB = &link.IPoIB{PKey: 0xffff}
		}),
		"host-device-userspace": of("host-device", func(r *Record) {
			r.Loan.Driver, r.Loan.Snapshot, r.Loan.Name, r.RDMA = "vfio-pci", nil, "", nil
		}),
		"sriov": of("sriov", func(r *Record) {
			r.VF, r.Loan.Identity.AnyMAC = &VF{PF: "0000:3b:00.0", Number: 3, Before: []byte{8, 0}, Want: []byte{8, 1}}, true
		}),
		"ib-sriov": of("ib-sriov", func(r *Record) {
			r.VF = &VF{
				PF: "0000:3b:00.0", Number: 3, Before: []byte{8, 0}, Want: []byte{8, 1},
				Driver: "mlx5_core", RDMA: "mlx5_4", RDMASettings: map[string]string{"adaptive-moderation": "on"},
			}
			r.Loan.Snapshot.IPoIB = &link.IPoIB{PKey: 0xffff}
		}),
		"macvlan": of("macvlan", func(r *Record) {
			r.Loan, r.Child = nil, &Child{Master: "ens12np0", MasterIndex: 4, Mode: "bridge", PodIndex: 2}
			r.RDMA.GIDs = []GID{{Device: "mlx5_0", Port: 1, Index: 3}}
		}),
		"ipoib": of("ipoib", func(r *Record) {
			r.Loan, r.Child = nil, &Child{Kind: link.KindIPoIB, Master: "ib0", MasterIndex: 4, PodIndex: 2}
		}),
		"rdma": of("rdma", func(r *Record) {
			r.Loan, r.RDMA.Mode, r.RDMA.Devices[0].Lent, r.RDMA.PodIndex = nil, "exclusive", true, 2
		}),
		"freeing": of("host-device", func(r *Record) { r.Phase = Freeing }),
	}
	all["every-key"] = of("host-device", func(r *Record) {
		versions.Fill(t, r)
		r.Child.Kind, r.BootID = link.KindIPoIB, ""
	})
	all["every-key"].BootID = "5b6c7a5e-0000-4000-8000-000000000000"
	return all
}

// TestRecordsOfEachVersionAreRead reads the records that each version wrote, with the code that
// reads those of a node.
func TestRecordsOfEachVersionAreRead(t *testing.T) {
	for kind, sample := range samples(t) {
		versions.Kept(t, "record-"+kind+".json", sample, func(data []byte) (any, error) { return Decode(data) })
	}
}

// TestRecordOfEachVersionHasEveryKey holds the sample to its name.
func TestRecordOfEachVersionHasEveryKey(t *testing.T) {
	keys := map[string]bool{}
	addKeys(keys, "", reflect.TypeFor[Record]())
	text, err := json.Marshal(samples(t)["every-key"])
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	leaves(value, "", keys, has)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !has[key] {
			t.Errorf("the sample lacks %s", key)
		}
	}
}

// leaves adds the keys of a JSON value, as addKeys names them.
func leaves(value any, at string, keys, has map[string]bool) {
	if keys[at] {
		has[at] = true
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if at != "" {
				key = at + "." + key
			}
			leaves(v, key, keys, has)
		}
	case []any:
		for _, v := range value {
			leaves(v, at+"[]", keys, has)
		}
	}
}

// TestLedgerOfEachVersionIsListedAndEnded puts the records of each version into a state directory:
// the ledger lists all, writes and removes each.
func TestLedgerOfEachVersionIsListedAndEnded(t *testing.T) {
	l := open(t, t.TempDir())
	want := map[Key]*Record{}
	for kind := range samples(t) {
		for version, path := range versions.Files(t, "record-"+kind+".json") {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			// All have the same key and NIC, which a node has once.
			id := version + "-" + kind
			data = bytes.ReplaceAll(data, []byte(`"containerID": "`+r.ContainerID+`"`), []byte(`"containerID": "`+id+`"`))
			if r.Loan != nil {
				data = bytes.ReplaceAll(data, []byte(`"nic": "`+r.Loan.NIC+`"`), []byte(`"nic": "`+id+`"`))
			}
			if r, err = Decode(data); err != nil || r.ContainerID != id {
				t.Fatal(err, r.Key)
			}
			want[r.Key] = r
			if err := os.WriteFile(filepath.Join(l.attachments.Path(), recordName(r.Key)), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if r.Loan != nil {
				if err := os.Symlink(recordName(r.Key), filepath.Join(l.nics.Path(), statefile.Name(r.Loan.NIC))); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	listed, errs := l.List()
	if err := errors.Join(errs...); err != nil || len(listed) != len(want) {
		t.Fatalf("%d of %d records are listed, %v", len(listed), len(want), err)
	}
	for _, r := range listed {
		r, err := l.Get(r.Key)
		if err != nil || !reflect.DeepEqual(r, want[r.Key]) {
			t.Errorf("read is %+v, %v, want %+v", r, err, want[r.Key])
		}
		if r.Loan != nil {
			holder, err := l.HolderOf(r.Loan.NIC)
			if err != nil || (holder != nil) != (r.Phase != Freeing) {
				t.Errorf("%s in phase %s holds its NIC: %v, %v", r.Key, r.Phase, holder, err)
			}
		}
		r.Phase = Returning
		put(t, l, r)
		if err := l.Remove(r); err != nil {
			t.Error(err)
		}
	}
	if left, errs := l.List(); len(left) != 0 || len(errs) != 0 {
		t.Errorf("left: %v, %v", left, errs)
	}
	if marks, err := os.ReadDir(l.nics.Path()); err != nil || len(marks) != 0 {
		t.Errorf("left: %v, %v", marks, err)
	}
}

// TestFileNamesOfEachVersionAreKept: a record and a mark are found by their names.
func TestFileNamesOfEachVersionAreKept(t *testing.T) {
	now := map[string]string{
		"c1/net1": recordName(Key{ContainerID: "c1", IfName: "net1"}), "a/b@c": recordName(Key{ContainerID: "a/b", IfName: "@c"}),
		"mark pci 0000:3b:00.0 02:00:00:00:00:17": statefile.Name("pci 0000:3b:00.0 02:00:00:00:00:17"),
	}
	versions.Kept(t, "file-names.json", now, func([]byte) (any, error) { return now, nil })
}

// TestNoteOfEachVersionIsRead reads the notes of returned NICs.
func TestNoteOfEachVersionIsRead(t *testing.T) {
	sample := Returned{}
	versions.Fill(t, &sample)
	versions.Kept(t, "returned.json", sample, func(data []byte) (any, error) {
		var r Returned
		err := json.Unmarshal(data, &r)
		return r, err
	})
}
