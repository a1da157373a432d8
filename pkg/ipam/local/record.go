package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// recordVersion is the version of the records and of pool.json.
const recordVersion = 1

// record is the file of an assigned address, with its owner.
type record struct {
	Version     int       `json:"version"`
	Address     string    `json:"address"` // with the mask
	Network     string    `json:"network,omitempty"`
	ContainerID string    `json:"containerID,omitempty"`
	PodRef      string    `json:"podref,omitempty"`
	IfName      string    `json:"ifname,omitempty"`
	Since       time.Time `json:"since"`
	// SetAside is the new name of the unreadable record that this one replaces.
	// It has no owner.
	SetAside string `json:"setAside,omitempty"`
}

func newRecord(addr netip.Prefix, o ipam.Owner, since time.Time) record {
	return record{
		Version: recordVersion, Address: addr.String(), Network: o.Network,
		ContainerID: o.ContainerID, PodRef: o.PodRef, IfName: o.IfName,
		Since: since.UTC().Truncate(time.Millisecond),
	}
}

func (r *record) owner() ipam.Owner {
	return ipam.Owner{ContainerID: r.ContainerID, PodRef: r.PodRef, IfName: r.IfName, Network: r.Network}
}

const jsonSuffix = ".json"

// recordName returns the file of addr's record.
func recordName(addr netip.Addr) string { return addr.String() + jsonSuffix }

// recordAddr returns the address of a record's file. It returns false for other
// files.
func recordAddr(name string) (netip.Addr, bool) {
	text, ok := strings.CutSuffix(name, jsonSuffix)
	if !ok {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(text)
	return addr, err == nil && recordName(addr) == name
}

// errNewer is wrapped by the error of [parseRecord] if a newer release has written the
// record. Such a record is not corrupt, and must not be changed.
var errNewer = errors.New("written by a newer version")

// parseRecord reads the record of addr.
func parseRecord(data []byte, addr netip.Addr) (*record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if r.Version > recordVersion {
		return nil, fmt.Errorf("%w (%d)", errNewer, r.Version)
	}
	if r.Version < 1 {
		return nil, errors.New("it has no version")
	}
	p, err := netip.ParsePrefix(r.Address)
	if err != nil {
		return nil, fmt.Errorf("its address is unreadable: %w", err)
	}
	if p.Addr() != addr {
		return nil, fmt.Errorf("it is the record of %s", p.Addr())
	}
	if r.SetAside == "" && r.ContainerID == "" {
		return nil, errors.New("it has no container ID")
	}
	return &r, nil
}

// read returns addr's record, or nil if there is none. It returns an error if the record is
// unreadable. If it also holds the lock, it sets the record aside, so that later reads
// return no error.
func (p *pool) read(addr netip.Addr) (*record, error) {
	name := recordName(addr)
	data, err := p.dir.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	path := filepath.Join(p.dir.Path(), name)
	if err != nil {
		return nil, failure.From(err, failure.IO, "address record %s", path).Cure("make the file readable for root")
	}
	r, err := parseRecord(data, addr)
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, errNewer):
		return nil, failure.From(err, failure.BadRecord, "address record %s", path).Cure("use the newer version of the plugin")
	case p.lock == nil:
		return nil, p.corrupt(err, path, "nothing to do: the next ADD or DEL that reads the record sets it aside")
	}
	aside, asideErr := p.setAside(addr)
	if asideErr != nil {
		return nil, errors.Join(p.corrupt(err, path, "correct the cause of the error that follows"), asideErr)
	}
	return nil, p.corrupt(err, path, fmt.Sprintf(
		"the content of the record is now in %s, and %s stays taken: remove %s when no pod uses that address", aside, addr, path))
}

func (p *pool) corrupt(err error, path, cure string) error {
	return failure.From(err, failure.BadRecord, "address record %s is corrupt", path).Cure("%s", cure)
}

// setAside renames the unreadable record of addr and puts a record without an owner in its
// place. It makes a link with the new name first, so that the address never looks free. The
// caller holds the lock.
func (p *pool) setAside(addr netip.Addr) (string, error) {
	name := recordName(addr)
	now := p.store.now().UTC()
	aside := fmt.Sprintf("%s.corrupt-%s", name, now.Format("20060102T150405.000000000"))
	if err := p.dir.Link(name, aside); err != nil {
		return "", failure.From(err, failure.IO, "setting aside %s", filepath.Join(p.dir.Path(), name)).Cure("make the directory writable for root")
	}
	r := newRecord(netip.PrefixFrom(addr, p.id.Prefix.Bits()), ipam.Owner{}, now)
	r.SetAside = aside
	return filepath.Join(p.dir.Path(), aside), p.writeRecord(addr, r)
}

func (p *pool) writeRecord(addr netip.Addr, r record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return p.dir.Write(recordName(addr), append(data, '\n'))
}
