package block

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// blocksDir is below the directory of a server and namespace, in storeDir of the
	// state directory.
	blocksDir  = "blocks"
	storeDir   = "ipam-kubernetes"
	jsonSuffix = ".json"
)

// moment is a time of CLOCK_BOOTTIME, which nobody sets, and which also runs while the
// machine is suspended. It has a meaning within one boot.
type moment time.Duration

func now() moment {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return moment(t.Nano())
}

// age returns the time since m. It is the longest time if m is zero or not of this boot.
func (m moment) age(at moment) time.Duration {
	if m == 0 || m > at {
		return time.Duration(1<<63 - 1)
	}
	return time.Duration(at - m)
}

// The states of a block.
const (
	claiming  = "claiming"  // the server may not know it
	held      = "held"      // the node assigns its addresses
	returning = "returning" // the server may know already that it is free
)

// entry is a block in the node's file.
type entry struct {
	Prefix netip.Prefix `json:"prefix"`
	Claim  string       `json:"claim"`
	State  string       `json:"state"`
	// Confirmed is when the node sent the request whose answer said that the block is its
	// own.
	Confirmed moment `json:"confirmed"`
}

// file is the node's file of the blocks of one pool. It is valid for one boot.
type file struct {
	Boot string `json:"boot"`
	// Kubeconfig, FlatFile, Server, Namespace and Node are for the agent, which does not
	// know the network's configuration.
	Kubeconfig string    `json:"kubeconfig"`
	FlatFile   string    `json:"flatFile,omitempty"`
	Node       string    `json:"node"`
	Pool       ipam.Pool `json:"pool"`
	Size       int       `json:"size"` // addresses of a block
	Blocks     []entry   `json:"blocks"`
	// Guarded is set once the server knows that the pool is divided into blocks.
	Guarded bool `json:"guarded,omitempty"`
	// Silent is when the server last did not confirm, and Full when no block was free.
	Silent moment `json:"silent,omitempty"`
	Full   moment `json:"full,omitempty"`
}

// find returns the block with the prefix, nil if the node does not have it.
func (f *file) find(prefix netip.Prefix) *entry {
	i := slices.IndexFunc(f.Blocks, func(e entry) bool { return e.Prefix == prefix })
	if i < 0 {
		return nil
	}
	return &f.Blocks[i]
}

// set adds or replaces a block.
func (f *file) set(e entry) {
	if old := f.find(e.Prefix); old != nil {
		*old = e
	} else {
		f.Blocks = append(f.Blocks, e)
	}
}

// drop removes a block.
func (f *file) drop(prefix netip.Prefix) {
	f.Blocks = slices.DeleteFunc(f.Blocks, func(e entry) bool { return e.Prefix == prefix })
}

// usable returns the blocks whose addresses the node may assign at a time.
func (f *file) usable(at moment) []netip.Prefix {
	var all []netip.Prefix
	for _, e := range f.Blocks {
		if e.State == held && e.Confirmed.age(at) < api.BlockUsableFor {
			all = append(all, e.Prefix)
		}
	}
	return all
}

// old reports whether the server should confirm a block that the node holds.
func (f *file) old(at moment) bool {
	return slices.ContainsFunc(f.Blocks, func(e entry) bool { return e.State == held && e.Confirmed.age(at) >= confirmAfter })
}

// pool is a pool that is divided into blocks, on this node.
type pool struct {
	*Store
	ipam.Pool
	size int
}

func (p *pool) name() string { return statefile.Name(p.Pool.Name()) }

// read returns the node's file, an empty one if there is none of this boot.
func (p *pool) read() (*file, error) {
	f, err := readFile(p.dir, p.name()+jsonSuffix)
	switch {
	case err == nil && f.Boot == p.self.Boot && f.Pool == p.Pool:
	case err == nil, errors.Is(err, fs.ErrNotExist):
		f = &file{Boot: p.self.Boot, Pool: p.Pool}
	default:
		return nil, err
	}
	f.Kubeconfig, f.FlatFile, f.Node = p.kubeconfig, p.flatFile, p.self.Node
	if p.size > 0 && f.Size != p.size {
		f.Size, f.Guarded = p.size, false
	}
	return f, nil
}

func readFile(dir *statefile.Dir, name string) (*file, error) {
	data, err := dir.Read(name)
	if err != nil {
		return nil, err
	}
	f := new(file)
	if err := json.Unmarshal(data, f); err != nil {
		return nil, failure.WithCure(failure.Wrap(err, failure.BadRecord, "%s", filepath.Join(dir.Path(), name)),
			"remove it when no pod of this node uses an address of the pool, or reboot the node")
	}
	return f, nil
}

// locked calls do with the node's file under the file's lock, and writes the file if do
// returns true. The lock is held for milliseconds: do makes no request.
func (p *pool) locked(ctx context.Context, do func(f *file) (changed bool, err error)) error {
	lock, err := p.dir.Lock(ctx, p.name()+".lock")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	f, err := p.read()
	if err != nil {
		return err
	}
	changed, err := do(f)
	if !changed {
		return err
	}
	data, jsonErr := json.MarshalIndent(f, "", "  ")
	if jsonErr == nil {
		jsonErr = p.dir.Write(p.name()+jsonSuffix, append(data, '\n'))
	}
	return errors.Join(err, jsonErr)
}

// change changes the node's file.
func (p *pool) change(ctx context.Context, do func(f *file)) error {
	return p.locked(ctx, func(f *file) (bool, error) {
		do(f)
		return true, nil
	})
}

// alone calls do while no other process of the node asks the server about the pool.
func (p *pool) alone(ctx context.Context, do func() error) error {
	lock, err := p.dir.Lock(ctx, p.name()+".server")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	return do()
}

// eachFile calls do for each file of the node's blocks in the state directory, with the
// name of the server's directory. Unreadable files are skipped.
func eachFile(stateDir string, do func(server string, f *file)) {
	files, err := filepath.Glob(filepath.Join(stateDir, storeDir, "*", blocksDir, "*"+jsonSuffix))
	if err != nil {
		return
	}
	for _, path := range files {
		dir, err := statefile.OpenExisting(filepath.Dir(path))
		if err != nil {
			continue
		}
		if f, err := readFile(dir, filepath.Base(path)); err == nil && strings.HasSuffix(path, statefile.Name(f.Pool.Name())+jsonSuffix) {
			do(filepath.Base(filepath.Dir(filepath.Dir(path))), f)
		}
		_ = dir.Close()
	}
}

// Held is a block of this node.
type Held struct {
	Pool   ipam.Pool
	Prefix netip.Prefix
	Claim  string
}

// OnNode returns the blocks that the node holds, or was about to take or to return when a
// process was killed, from the files in stateDir.
func OnNode(stateDir string) []Held {
	var all []Held
	eachFile(stateDir, func(_ string, f *file) {
		for _, e := range f.Blocks {
			all = append(all, Held{f.Pool, e.Prefix, e.Claim})
		}
	})
	return all
}
