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

// ErrNoRecord is wrapped when there is no record of an attachment.
var ErrNoRecord = errors.New("no record")

// Ledger is the open state directory of a node. Close it when done.
type Ledger struct {
	state, attachments, nics, locks *statefile.Dir
	bootID                          string
}

// Open opens the ledger below the state directory and makes what is missing.
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

// Exists reports whether a ledger was ever opened at dir. A reader that finds
// none must not create it.
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

// LockAttachment takes the lock of an attachment, and waits for it until ctx
// ends. The caller must unlock it.
func (l *Ledger) LockAttachment(ctx context.Context, k Key) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, statefile.Name("attachment", k.ContainerID, k.IfName))
}

// TryLockAttachment takes the lock of an attachment, or fails at once with an
// error that wraps [statefile.ErrBusy].
func (l *Ledger) TryLockAttachment(k Key) (*statefile.Lock, error) {
	return l.locks.TryLock(statefile.Name("attachment", k.ContainerID, k.IfName))
}

// LockNIC takes the lock under which a loan of the NIC is decided. nic is
// nic.NIC.Key.
func (l *Ledger) LockNIC(ctx context.Context, nic string) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, nicLock(nic))
}

func nicLock(nic string) string { return statefile.Name("nic", nic) }

// Get reads the record of an attachment. The error wraps [ErrNoRecord] if there
// is none. A corrupt record is renamed, so that it does not block the
// attachment, and the error has its new path; a record of a newer version, and
// one that cannot be read at the moment, are left unchanged.
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

// Peek is [Ledger.Get] without renaming a corrupt record.
func (l *Ledger) Peek(k Key) (*Record, error) { return l.read(recordName(k)) }

// LockRDMA takes the node's lock for moves of RDMA devices: the kernel may
// exchange the uverbs numbers of two that move at the same time.
func (l *Ledger) LockRDMA(ctx context.Context) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, "rdma")
}

// LockNames takes the node's lock for renaming a NIC that is on the host
// without its own name.
func (l *Ledger) LockNames(ctx context.Context) (*statefile.Lock, error) {
	return l.locks.Lock(ctx, "names")
}

// LockTable takes the node's lock for choosing this routing table in any pod netns. Without
// it two ADDs of one pod could both find the table free.
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

// decode returns the record in data, the content of the file name, or an error
// that explains the read error err.
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

// errCorrupt marks a record that will never be readable.
var errCorrupt = errors.New("corrupt record")

// Put writes the record. In phase [Lending] it first marks the NIC as held; the
// caller holds the NIC's lock and has called [Ledger.HolderOf]. A record of
// another boot keeps that boot's ID.
func (l *Ledger) Put(r *Record) error {
	r.Version = Version
	if r.BootID == "" {
		r.BootID = l.bootID
	}
	r.Updated = time.Now().UTC()
	// Without indentation, which grows with the square of a configuration's depth.
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	name := recordName(r.Key)
	if r.Loan != nil && r.Phase == Lending {
		// First the mark: one without a record means nothing, but a record
		// without a mark would let the NIC be lent twice.
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

// HolderOf returns the record that holds the NIC, or nil. The answer stays
// valid as long as the caller holds the NIC's lock.
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
		return nil, nil // killed between mark and record, or after removing the record
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

// SetAside renames the record of an attachment, so that it can be examined
// later, and returns its new path.
func (l *Ledger) SetAside(k Key) (string, error) { return l.attachments.SetAside(recordName(k)) }

// Remove removes the record of an attachment and the mark on its NIC, whose
// lock the caller must not hold. A missing record is not an error.
func (l *Ledger) Remove(r *Record) error {
	if err := l.attachments.Remove(recordName(r.Key)); err != nil {
		return err
	}
	return l.unmark(r)
}

// unmark removes the record's mark on its NIC under the NIC's lock, because an
// ADD may be replacing it. If another process has the lock, that process
// replaces the mark, or finds that it is stale.
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

// List reads all records, oldest first, without their IPAM plugins'
// configurations: these are the largest part, and only the end of an attachment
// needs one. [Ledger.Get] returns it. List skips records that it cannot read,
// and returns an error for each.
//
// Among them are records of an earlier boot, of other host netns, and of attachments of which only
// addresses are left. Use [Ledger.Held] unless these are meant.
func (l *Ledger) List() ([]*Record, []error) {
	return l.list(func(*Record) bool { return true }, false)
}

// ListIf is [Ledger.List], but returns only the records for which wanted returns true.
// wanted must use only the fields above Loan, because the rest may not be decoded yet. A
// record that is not wanted is neither decoded in full nor checked. This makes ADD fast,
// which looks for dead pods among all records of the node.
func (l *Ledger) ListIf(wanted func(*Record) bool) ([]*Record, []error) {
	return l.list(wanted, true)
}

// ofContainer is [Ledger.List] for one container. It reads no other record: the names of
// the files have the container's ID.
func (l *Ledger) ofContainer(id string) ([]*Record, []error) {
	prefix, ok := prefixOf(id)
	if !ok {
		return l.ListIf(func(r *Record) bool { return r.ContainerID == id })
	}
	return l.collect(prefix, func(*Record) bool { return true }, false)
}

// prefixOf returns the prefix that the names of a container's files have. It returns false if
// the ID is so long that they have no common prefix.
func prefixOf(id string) (string, bool) {
	prefix := statefile.Name(id) + separator
	return prefix, len(prefix) <= maxPrefix
}

// separator is what statefile.Name has between the container's ID and the interface, and
// maxPrefix the length in bytes from which it replaces the end of a name by a hash.
const (
	separator = "@"
	maxPrefix = 100
)

// list lists the records that are wanted, and looks at their heads first if few may be.
func (l *Ledger) list(wanted func(*Record) bool, heads bool) ([]*Record, []error) {
	return l.collect("", wanted, heads)
}

// collect is list for the files whose names begin with the prefix.
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

// head decodes the fields of a record above Loan, which stand first in a file that Put
// wrote. It returns nil if they do not, and the caller must decode the whole record. A
// quotation mark inside a JSON string is escaped, so no value looks like one of the keys.
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

// OfThisBoot reports whether the kernel state that r describes can still exist.
func (l *Ledger) OfThisBoot(r *Record) bool {
	return r.BootID == "" || l.bootID == "" || r.BootID == l.bootID
}

func sortByAge(records []*Record) {
	slices.SortStableFunc(records, func(a, b *Record) int { return a.Created.Compare(b.Created) })
}
