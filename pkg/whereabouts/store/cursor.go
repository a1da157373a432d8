package store

import (
	"errors"
	"net/netip"
	"strings"
)

// lastFile, in a pool's queue, has the address that this node handed out last there,
// for asks that rotate. Entries have no time, so neither a node nor the server knows
// which address was freed longest ago; that another node freed one just now is not known
// at all. The file may be lost, or wrong: then another free address is the next one.
const lastFile = "last"

// cursor is the position of a turn's asks that rotate.
type cursor struct {
	addr         netip.Addr
	known, moved bool // read from lastFile; to be written to it
}

// lastAddr returns the address that this node handed out last in the pool, the zero Addr
// if that is unknown.
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
		t.last.addr, _ = netip.ParseAddr(strings.TrimSpace(string(data)))
	}
	return t.last.addr
}

// keepLast writes the turn's position to lastFile.
func (t *turn) keepLast() {
	if !t.last.moved {
		return
	}
	t.last.moved = false
	dir, err := t.s.queueDir(t.pool)
	if err == nil {
		err = errors.Join(dir.Write(lastFile, []byte(t.last.addr.String()+"\n")), dir.Close())
	}
	t.s.warnIf(err)
}
