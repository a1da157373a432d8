package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

const suffix = ".json"

// ErrNoRecord is wrapped by the error that an attachment has no record.
var ErrNoRecord = errors.New("no record")

// Ledger is the open state directory of a node. Close it when done.
type Ledger struct {
	state, attachments, nics, locks *statefile.Dir
	bootID                          string
}

// Open opens the ledger in the state directory dir, and makes the directories that are missing.
func Open(dir string) (*Ledger, error) {
	state, err := statefile.Open(dir)
	if err != nil {
		return nil, err
	}
	l := &Ledger{state: state}
	for _, sub := range []struct {
		name string
		dir  **statefile.Dir
	}{{"attachments", &l.attachments}, {"nics", &l.nics}, {"locks", &l.locks}} {
		if *sub.dir, err = state.Sub(sub.name); err != nil {
			l.Close()
			return nil, err
		}
	}
	if state.Durable() {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			l.Close()
			return nil, err
		}
		l.bootID = strings.TrimSpace(string(id))
	}
	return l, nil
}

// Exists reports whether a ledger was ever opened at dir. A program that only reads must not create
// a ledger.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "attachments"))
	return err == nil
}

// Close closes the ledger. It does not release locks.
func (l *Ledger) Close() {
	for _, d := range []*statefile.Dir{l.attachments, l.nics, l.locks, l.state} {
		if d != nil {
			_ = d.Close()
		}
	}
}

// Dir returns the state directory.
func (l *Ledger) Dir() string { return l.state.Path() }

func recordName(k Key) string { return statefile.Name(k.ContainerID, k.IfName) + suffix }

// LockAttachment takes the lock of an attachment. It waits for the lock until ctx ends. The caller
// must release the lock.
func (l *Ledger) LockAttachment(ctx context.Context, k Key) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, statefile.Name("attachment", k.ContainerID, k.IfName))
}

// TryLockAttachment takes the lock of an attachment. If another process has the lock, it does not
// wait: it returns an error that wraps [statefile.ErrBusy].
func (l *Ledger) TryLockAttachment(k Key) (*statefile.Lock, error) {
	return l.locks.TryLock(statefile.Name("attachment", k.ContainerID, k.IfName))
}

// LockNIC takes the lock of a NIC. A process must hold it to decide on a loan of the NIC. nic is
// the result of nic.NIC.Key.
func (l *Ledger) LockNIC(ctx context.Context, nic string) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, nicLock(nic))
}

func nicLock(nic string) string { return statefile.Name("nic", nic) }

// Get reads the record of an attachment. The error wraps [ErrNoRecord] if the attachment has no
// record. If the record is corrupt, Get renames its file, so that it does not block the attachment.
// The error has the new path. Get leaves a record of a newer version, and a record that cannot be
// read at the moment, as they are.
func (l *Ledger) Get(k Key) (*Record, error) {
	r, err := l.Peek(k)
	if err == nil || !errors.Is(err, errCorrupt) {
		return r, err
	}
	aside, moveErr := l.SetAside(k)
	if moveErr != nil {
		return nil, errors.Join(err, moveErr)
	}
	return nil, failure.From(err, failure.BadRecord, "the record of %s is corrupt", k).Cure("the file is kept as %s", aside)
}

// Peek reads the record of an attachment as [Ledger.Get] does, but it does not rename a corrupt
// record.
func (l *Ledger) Peek(k Key) (*Record, error) { return l.read(recordName(k)) }

// LockRDMA takes the node's lock for moves of RDMA devices. If two devices moved at the same time,
// the kernel could exchange their uverbs numbers.
func (l *Ledger) LockRDMA(ctx context.Context) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, "rdma")
}

// LockNames takes the node's lock of names. A process must hold it to rename a NIC that is on the
// host and does not have its own name.
func (l *Ledger) LockNames(ctx context.Context) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, "names")
}

// LockTable takes the node's lock for choosing this routing table in any pod netns. Without the
// lock, two ADDs of the same pod could both find the table free.
func (l *Ledger) LockTable(ctx context.Context, table int) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, statefile.Name("table", strconv.Itoa(table)))
}

func (l *Ledger) read(name string) (*Record, error) {
	data, err := l.attachments.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNoRecord, filepath.Join(l.attachments.Path(), name))
	}
	return l.decode(name, data, err)
}

// decode returns the record in data, the content of the file name. err is the error of reading the
// file. If err is not nil, decode returns an error that explains it.
func (l *Ledger) decode(name string, data []byte, err error) (*Record, error) {
	switch {
	case errors.Is(err, statefile.ErrForeign):
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	case err != nil:
		return nil, err
	}
	r, err := Decode(data)
	path := func() string { return filepath.Join(l.attachments.Path(), name) }
	switch {
	case errors.Is(err, errNewer):
		return nil, fmt.Errorf("%s: %w", path(), err)
	case err != nil:
		return nil, fmt.Errorf("%w %s: %w", errCorrupt, path(), err)
	case recordName(r.Key) != name:
		return nil, fmt.Errorf("%w %s: it is the record of %s", errCorrupt, path(), r.Key)
	}
	return r, nil
}

// errCorrupt is wrapped by the error about a record that no later try can read.
var errCorrupt = errors.New("corrupt record")

// Put writes the record. In phase [Lending] it first marks the NIC as held: then the caller must
// hold the lock of the NIC and must have called [Ledger.HolderOf]. If the record is of an earlier
// boot, it keeps the ID of that boot.
func (l *Ledger) Put(r *Record) error {
	r.Version = Version
	if r.BootID == "" {
		r.BootID = l.bootID
	}
	r.Updated = time.Now().UTC()
	// The record is not indented, because the indentation would grow with the square of the
	// configuration's depth.
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	name := recordName(r.Key)
	if r.Loan != nil && r.Phase == Lending {
		// The mark comes first: a mark without a record means nothing, but with a record without
		// a mark the NIC could be lent twice.
		mark := statefile.Name(r.Loan.NIC)
		if target, err := l.nics.Readlink(mark); err != nil || target != name {
			if err := l.nics.Remove(mark); err != nil {
				return err
			}
			if err := l.nics.Symlink(name, mark); err != nil {
				return err
			}
		}
	}
	return l.attachments.Write(name, append(data, '\n'))
}

// HolderOf returns the record of the attachment that holds the NIC, or nil. The result stays valid
// as long as the caller holds the lock of the NIC.
func (l *Ledger) HolderOf(nic string) (*Record, error) {
	name, err := l.nics.Readlink(statefile.Name(nic))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := l.read(name)
	if errors.Is(err, ErrNoRecord) {
		return nil, nil // a process was killed before it wrote the record, or after it removed the record
	}
	if errors.Is(err, errCorrupt) {
		return nil, failure.From(err, failure.BadRecord, "cannot tell who holds the NIC").
			Cure("end the attachment (CNI DEL), which moves a corrupt record aside")
	}
	if err != nil {
		return nil, err
	}
	if r.Loan == nil || r.Loan.NIC != nic || r.Phase == Freeing {
		return nil, nil
	}
	return r, nil
}

// SetAside renames the record of an attachment, so that the record can be examined later, and
// returns its new path.
func (l *Ledger) SetAside(k Key) (string, error) { return l.attachments.SetAside(recordName(k)) }

// Remove removes the record of an attachment and the mark on its NIC. The caller must not hold the
// lock of that NIC. A missing record is not an error.
func (l *Ledger) Remove(r *Record) error {
	if err := l.attachments.Remove(recordName(r.Key)); err != nil {
		return err
	}
	return l.unmark(r)
}

// unmark removes the record's mark on its NIC. It takes the lock of the NIC, because an ADD may be
// replacing the mark. If another process has the lock, unmark does nothing: that process either
// replaces the mark or finds that the mark is stale.
func (l *Ledger) unmark(r *Record) error {
	if r.Loan == nil {
		return nil
	}
	lock, err := l.locks.TryLock(nicLock(r.Loan.NIC))
	if errors.Is(err, statefile.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	mark := statefile.Name(r.Loan.NIC)
	if target, readErr := l.nics.Readlink(mark); readErr == nil && target == recordName(r.Key) {
		err = l.nics.Remove(mark)
	}
	return errors.Join(err, lock.UnlockAndRemove())
}

// List returns all records, oldest first. It leaves out the configuration of the IPAM plugin, which
// is the largest part of a record, because only the end of an attachment needs it. [Ledger.Get]
// returns records with the configuration. List skips records that it cannot read, and returns an
// error for each of them.
//
// The result includes records of an earlier boot, of other host netns, and of attachments of which
// only addresses are left. If these are not wanted, use [Ledger.Held].
func (l *Ledger) List() ([]*Record, []error) {
	return l.list(func(*Record) bool { return true }, false)
}

// ListIf returns the records for which wanted returns true, as [Ledger.List] does. wanted must use
// only the fields above Loan, because the others may not be decoded yet. A record that is not
// wanted is neither fully decoded nor checked. This makes an ADD fast, because it looks for dead
// pods among all records of the node.
func (l *Ledger) ListIf(wanted func(*Record) bool) ([]*Record, []error) {
	return l.list(wanted, true)
}

// ofContainer returns the records of one container, as [Ledger.List] does. It reads no other
// records, because the names of the files contain the ID of the container.
func (l *Ledger) ofContainer(id string) ([]*Record, []error) {
	prefix, ok := prefixOf(id)
	if !ok {
		return l.ListIf(func(r *Record) bool { return r.ContainerID == id })
	}
	return l.collect(prefix, func(*Record) bool { return true }, false)
}

// prefixOf returns the common prefix of the names of a container's files. It returns false if the
// ID is so long that the names have no common prefix.
func prefixOf(id string) (string, bool) {
	prefix := statefile.Name(id) + separator
	return prefix, len(prefix) <= maxPrefix
}

// separator is what statefile.Name puts between the container's ID and the name of the interface.
// maxPrefix is the length in bytes above which a prefix is not used, because statefile.Name
// replaces the end of a long name by a hash.
const (
	separator = "@"
	maxPrefix = 100
)

// list returns the records that are wanted. If heads is true, it first looks only at the head of
// each record, which is faster if few records are wanted.
func (l *Ledger) list(wanted func(*Record) bool, heads bool) ([]*Record, []error) {
	return l.collect("", wanted, heads)
}

// collect does what list does, but only for the files whose names begin with prefix.
func (l *Ledger) collect(prefix string, wanted func(*Record) bool, heads bool) ([]*Record, []error) {
	var records []*Record
	var errs []error
	err := l.attachments.ReadEachOf(prefix, suffix, func(name string, data []byte, err error) {
		if heads && err == nil {
			if h := head(data); h != nil && recordName(h.Key) == name && !wanted(h) {
				return
			}
		}
		r, err := l.decode(name, data, err)
		switch {
		case err != nil:
			errs = append(errs, err)
		case wanted(r):
			if r.IPAM != nil {
				r.IPAM.Config = nil
			}
			records = append(records, r)
		}
	})
	if err != nil {
		return nil, []error{err}
	}
	sortByAge(records)
	return records, errs
}

// head decodes only the fields of a record above Loan. These fields come first in a file that Put
// wrote. If they do not come first, head returns nil, and the caller must decode the whole record.
// No value can look like one of the keys, because a quotation mark inside a JSON string is escaped.
func head(data []byte) *Record {
	end := -1
	for _, key := range []string{`,"loan":{`, `,"child":{`, `,"rdma":{`} {
		if i := bytes.Index(data, []byte(key)); i >= 0 && (end < 0 || i < end) {
			end = i
		}
	}
	if end < 0 {
		return nil
	}
	var r Record
	err := json.Unmarshal(append(bytes.Clone(data[:end]), '}'), &r)
	if err != nil || r.Version != Version || r.Phase == "" || r.Netns.IsZero() || r.HostNetns.IsZero() {
		return nil
	}
	return &r
}

// OfThisBoot reports whether r is of this boot, so that the kernel state that r describes can still
// exist.
func (l *Ledger) OfThisBoot(r *Record) bool {
	return r.BootID == "" || l.bootID == "" || r.BootID == l.bootID
}

func sortByAge(records []*Record) {
	slices.SortStableFunc(records, func(a, b *Record) int { return a.Created.Compare(b.Created) })
}
