package store

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// note is the node's note of an assigned address. It has all that is needed to free the
// address, without a request that reads and without the config.
type note struct {
	Kubeconfig string     `json:"kubeconfig,omitempty"`
	Pool       ipam.Pool  `json:"pool"`
	Owner      ipam.Owner `json:"owner"`
	Since      time.Time  `json:"since"`
	// Born is the Born of the ask. It shows which of two sandboxes of one node is newer.
	Born time.Time  `json:"born,omitzero"`
	Addr netip.Addr `json:"address"`
	Key  string     `json:"key"`
	// Reserved is set if there may be a reservation. Reservation is the UID of the
	// reservation, or "" if the UID must be read first.
	Reserved    bool   `json:"reserved,omitempty"`
	Reservation string `json:"reservation,omitempty"`
}

func (t *turn) noteOf(j *job, h held) *note {
	return &note{
		Kubeconfig: cmp.Or(j.Kubeconfig, t.s.kubeconfig), Pool: t.pool, Owner: j.Owner,
		Since: time.Now().UTC().Truncate(time.Millisecond), Born: j.Born,
		Addr: h.addr, Key: h.key, Reserved: h.reserved, Reservation: h.uid,
	}
}

func (n *note) held() held {
	return held{addr: n.Addr, key: n.Key, entry: api.NewEntry(n.Owner), reserved: n.Reserved, uid: n.Reservation}
}

const (
	noteSuffix = ".note"
	notesDir   = "notes"
)

func attachmentPrefix(o ipam.Owner) string {
	return statefile.Name(o.ContainerID, o.IfName) + "@"
}

func noteName(o ipam.Owner, pool string) string {
	sum := sha256.Sum256([]byte(pool)) // two whole names may be too long for a file name
	return attachmentPrefix(o) + hex.EncodeToString(sum[:8]) + noteSuffix
}

// notes is the directory of the notes of one server.
type notes struct{ dir *statefile.Dir }

// get returns the note of o's address in pool, or nil if there is no readable note. No note
// is no error, because notes are optional.
func (n notes) get(o ipam.Owner, pool string) *note { return n.read(noteName(o, pool)) }

func (n notes) read(name string) *note {
	data, err := n.dir.Read(name)
	if err != nil {
		return nil
	}
	var v note
	if json.Unmarshal(data, &v) != nil || !v.Addr.IsValid() || v.Key == "" {
		return nil
	}
	return &v
}

func (n notes) put(v *note) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return n.dir.Write(noteName(v.Owner, v.Pool.Name()), data)
}

func (n notes) drop(o ipam.Owner, pool string) error { return n.dir.Remove(noteName(o, pool)) }

// list returns the notes whose file name begins with prefix.
func (n notes) list(prefix string) ([]*note, error) {
	names, err := n.dir.List(noteSuffix)
	if err != nil {
		return nil, err
	}
	var all []*note
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if v := n.read(name); v != nil {
			all = append(all, v)
		}
	}
	return all, nil
}
