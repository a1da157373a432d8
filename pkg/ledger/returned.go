package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// Returned is the note about a returned NIC: it lists the settings that are not as they were before
// the loan. The note outlives the record. It stays until a person has corrected the NIC and removes
// the file. A later return of the NIC does not remove the note, because the snapshot of that loan
// is of the changed NIC.
type Returned struct {
	NIC     string    `json:"nic"`     // name of the NIC on the host
	Time    time.Time `json:"time"`    // of the last return with a changed setting
	Holder  string    `json:"holder"`  // holder of the NIC before that return
	Changed []string  `json:"changed"` // settings, the newest last

	// File is the path of the note.
	File string `json:"-"`
}

const (
	returnedDir = "returned"
	maxChanged  = 32  // recorded settings of a NIC
	maxChange   = 256 // bytes of each
)

// PutReturned adds the settings in r to the note of the NIC. nic is the result of nic.NIC.Key.
func (l *Ledger) PutReturned(nic string, r Returned) error {
	dir, err := l.state.Sub(returnedDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := statefile.Name(nic) + suffix
	var all []string
	for _, c := range r.Changed {
		all = append(all, c[:min(len(c), maxChange)]) // cut as in an earlier note, so that the two can be compared
	}
	if old, err := readReturned(dir, name); err == nil {
		all = append(slices.DeleteFunc(old.Changed, func(c string) bool { return slices.Contains(all, c) }), all...)
	}
	r.Changed = all[max(0, len(all)-maxChanged):]
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return dir.Write(name, append(data, '\n'))
}

func readReturned(dir *statefile.Dir, name string) (*Returned, error) {
	data, err := dir.Read(name)
	if err != nil {
		return nil, err
	}
	r := &Returned{File: filepath.Join(dir.Path(), name)}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", r.File, err)
	}
	return r, nil
}

// Returned returns the notes about NICs that were not returned as they were before, sorted by name.
// It skips notes that cannot be read, and returns an error for each of them.
func (l *Ledger) Returned() ([]*Returned, []error) {
	if !l.state.Exists(returnedDir) {
		return nil, nil
	}
	dir, err := l.state.Sub(returnedDir)
	if err != nil {
		return nil, []error{err}
	}
	defer dir.Close()
	names, err := dir.List(suffix)
	if err != nil {
		return nil, []error{err}
	}
	var all []*Returned
	var errs []error
	for _, name := range names {
		switch r, err := readReturned(dir, name); {
		case err == nil:
			all = append(all, r)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	return all, errs
}
