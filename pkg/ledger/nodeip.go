package ledger

import (
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// nodeIPFile is the name of the file that has the node's address in its cluster, as text.
const nodeIPFile = "node-ip"

// NodeIP returns the address by which the cluster reaches the node (its InternalIP), or
// the zero Addr if no rail-agent has stored one.
func (l *Ledger) NodeIP() (netip.Addr, error) {
	text, err := l.state.Read(nodeIPFile)
	if errors.Is(err, fs.ErrNotExist) {
		return netip.Addr{}, nil
	}
	var ip netip.Addr
	if err == nil {
		ip, err = netip.ParseAddr(strings.TrimSpace(string(text)))
	}
	return ip, failure.From(err, failure.IO, "the node's address in %s", filepath.Join(l.Dir(), nodeIPFile)).
		Cure("rail-agent writes the file again within a minute; if the node has no rail-agent, remove the file")
}

// PutNodeIP stores the address by which the cluster reaches the node.
func (l *Ledger) PutNodeIP(ip netip.Addr) error {
	return l.state.Write(nodeIPFile, []byte(ip.String()+"\n"))
}
