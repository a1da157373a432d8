package ledger

import (
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestEditedLoanIsNotProven(t *testing.T) {
	host := Netns{NetnsID: link.NetnsID{Inode: 7, Cookie: 1}}
	device := func() *Record {
		return &Record{Key: Key{"c1", "net1"}, Phase: Lending, HostNetns: host, Loan: &Loan{
			NIC: "pci 0000:3b:00.0 02:00:00:00:00:17", Name: "ens1", Snapshot: &link.Snapshot{Name: "ens1"},
			Identity: link.Identity{ParentBus: "pci", ParentDev: "0000:3b:00.0", PermMAC: "02:00:00:00:00:17"},
		}}
	}
	representor := func() *Record {
		r := device()
		r.Loan.NIC, r.Loan.Identity.PermMAC = "pci 0000:3b:00.0 ens1", ""
		return r
	}
	virtual := func() *Record {
		r := device()
		r.Loan.NIC, r.Loan.Identity = "net:[7] ens1", link.Identity{Kind: "veth"}
		return r
	}
	for name, made := range map[string]func() *Record{"device": device, "representor": representor, "virtual": virtual} {
		t.Run(name, func(t *testing.T) {
			l, err := Open(filepath.Join(t.TempDir(), "state"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if l.Proves(made()) {
				t.Error("proven before it is recorded")
			}
			if err := l.Put(made()); err != nil {
				t.Fatal(err)
			}
			if !l.Proves(made()) {
				t.Error("not proven")
			}
			for what, edit := range map[string]func(r *Record){
				"NIC":        func(r *Record) { r.Loan.NIC += "x" },
				"name":       func(r *Record) { r.Loan.Name = "ens2" },
				"snapshot":   func(r *Record) { r.Loan.Snapshot.Name = "ens2" },
				"both names": func(r *Record) { r.Loan.Name, r.Loan.Snapshot.Name, r.Loan.NIC = "ens2", "ens2", r.Loan.NIC+"2" },
				"parent":     func(r *Record) { r.Loan.Identity.ParentDev = "0000:3c:00.0" },
				"attachment": func(r *Record) { r.ContainerID = "c2" },
				"nothing of": func(r *Record) { r.Loan.Snapshot = nil },
			} {
				r := made()
				edit(r)
				if l.Proves(r) {
					t.Errorf("proven with another %s", what)
				}
			}
			if err := l.Remove(made()); err != nil {
				t.Fatal(err)
			}
			if l.Proves(made()) {
				t.Error("proven after it is removed")
			}
		})
	}
}
