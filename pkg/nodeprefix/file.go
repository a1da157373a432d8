package nodeprefix

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

const (
	directory = "prefixes" // below the state directory
	fileName  = netconf.NVIPAM + ".json"
	schema    = "rail-cni.io/prefixes/v1"
)

// Pools are the pools of nv-ipam, with this node's prefix of each. They are the file's content.
type Pools struct {
	Schema string `json:"schema"`
	Node   string `json:"node"` // its name in the cluster
	Pools  []Pool `json:"pools"`
}

// Pool is one pool. Either Prefix or Problem is set.
type Pool struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace"`
	Prefix    string   `json:"prefix,omitempty"`  // the node's: network/length
	Gateway   string   `json:"gateway,omitempty"` // an address in Prefix
	Exclude   []string `json:"exclude,omitempty"` // addresses and CIDRs in Prefix that no pod gets
	Routes    []string `json:"routes,omitempty"`  // destinations of routes by Gateway
	Problem   string   `json:"problem,omitempty"` // why the node has no prefix of the pool
}

// Read returns the pools that rail-agent has written below a state directory. The error wraps
// [fs.ErrNotExist] if it has written none.
func Read(stateDir string) (*Pools, error) {
	path := filepath.Join(stateDir, directory)
	d, err := statefile.OpenExisting(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	data, err := d.Read(fileName)
	if err != nil {
		return nil, err
	}
	p := &Pools{}
	if err := json.Unmarshal(data, p); err != nil || p.Schema != schema {
		return nil, failure.WithCure(failure.Wrap(cmp.Or(err, errors.New("another schema than "+schema)), failure.BadRecord, "%s", filepath.Join(path, fileName)),
			"remove it: rail-agent writes it again")
	}
	return p, nil
}

// Write writes the pools below a state directory, unless the file has them already.
func (p *Pools) Write(stateDir string) error {
	p.Schema = schema
	slices.SortFunc(p.Pools, func(a, b Pool) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Namespace, b.Namespace))
	})
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	state, err := statefile.Open(stateDir)
	if err != nil {
		return err
	}
	defer state.Close()
	d, err := state.Sub(directory)
	if err != nil {
		return err
	}
	defer d.Close()
	if have, err := d.Read(fileName); err == nil && string(have) == string(data) {
		return nil
	}
	return d.Write(fileName, data)
}

// Remove removes the file. It is no error if there is none.
func Remove(stateDir string) error {
	d, err := statefile.OpenExisting(filepath.Join(stateDir, directory))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Remove(fileName)
}

// Of returns the node's prefix of a pool, from the file below the state directory. file is the
// node file, which must ask for such prefixes.
func Of(stateDir string, file *netconf.NodeFile, pool string) (*netconf.NodePrefix, error) {
	if !file.ReadsPrefixesFrom(netconf.NVIPAM) {
		return nil, failure.WithCure(failure.New(failure.InvalidConfig, "the node file does not say that rail-agent reads the pools of nv-ipam"),
			`write "prefixesFrom: [nv-ipam]" in the node file`)
	}
	p, err := Read(stateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, failure.WithCure(failure.New(failure.TryAgain, "rail-agent has not written the node's prefixes yet (%s)", filepath.Join(stateDir, directory, fileName)),
			"see that rail-agent runs on the node for this state directory, and what its log says about prefixes")
	case err != nil:
		return nil, err
	}
	return p.prefix(pool)
}

// prefix returns the node's prefix of a pool. Pools of the same name that give the node no
// prefix do not count. Otherwise a user who may create CIDRPools in one namespace could make
// the ADDs of others fail.
func (p *Pools) prefix(pool string) (*netconf.NodePrefix, error) {
	var found []Pool                  // those with a prefix
	var namespaces, problems []string // the namespaces of found, and the problems of the others
	for _, have := range p.Pools {
		switch {
		case have.Name != pool:
		case have.Problem != "":
			problems = append(problems, fmt.Sprintf("%s/%s: %s", have.Namespace, pool, have.Problem))
		default:
			found, namespaces = append(found, have), append(namespaces, have.Namespace)
		}
	}
	switch {
	case len(found) == 0 && len(problems) == 0:
		return nil, failure.WithCure(failure.New(failure.InvalidConfig, "nv-ipam has no CIDRPool %q", pool), `see "kubectl get cidrpools.nv-ipam.nvidia.com -A", and correct the network`)
	case len(found) > 1:
		return nil, failure.WithCure(failure.New(failure.InvalidConfig, "nv-ipam has CIDRPools %q in the namespaces %s", pool, strings.Join(namespaces, ", ")),
			"delete those that are not in nv-ipam's own namespace: it does not use them")
	case len(found) == 0:
		return nil, failure.WithCure(failure.New(failure.NotAvailable, "the node %s has no prefix of the CIDRPool %s", p.Node, strings.Join(problems, ", nor of ")),
			`see the pool's "nodeSelector" and "status", and nv-ipam's controller`)
	}
	return &netconf.NodePrefix{Prefix: found[0].Prefix, Gateway: found[0].Gateway, Exclude: found[0].Exclude, Routes: found[0].Routes}, nil
}
