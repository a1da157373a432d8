package store

import (
	"errors"
	"net/netip"
	"strings"
)

// lastFile is a file in a pool's queue. It has the address that this node handed out last
// in that pool, and is used by asks that rotate. Entries have no time, so neither a node
// nor the server knows which address was freed longest ago. The file may be lost, or wrong.
// Then the next ask gets another free address.
const lastFile = "last"

// cursor is the position of a turn's asks that rotate.
type cursor struct {
	addr  netip.Addr // the last address in the planned patch
	kept  netip.Addr // the address in lastFile
	known bool       // lastFile was read
}

// lastAddr returns the address that this node handed out last in the pool, or the zero Addr
// if that address is unknown.
func (t *turn) lastAddr() netip.Addr {
	if t.last.known {
		return t.last.addr
	}
	t.last.known = true
	dir, err := t.s.queueDir(t.pool)
	if err != nil {
		return netip.Addr{}
	}
	defer dir.Close()
	if data, err := dir.Read(lastFile); err == nil {
		t.last.kept, _ = netip.ParseAddr(strings.TrimSpace(string(data)))
	}
	t.last.addr = t.last.kept
	return t.last.addr
}

// keepLast writes the turn's position to lastFile.
func (t *turn) keepLast() {
	if t.last.addr == t.last.kept {
		return
	}
	t.last.kept = t.last.addr
	dir, err := t.s.queueDir(t.pool)
	if err == nil {
		err = errors.Join(dir.Write(lastFile, []byte(t.last.addr.String()+"\n")), dir.Close())
	}
	t.s.warnIf(err)
}
