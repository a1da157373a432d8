package block

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// blocksDir is the name of a directory in the directory of a server and namespace. That
	// directory is in storeDir, which is in the state directory.
	blocksDir  = "blocks"
	storeDir   = "ipam-kubernetes"
	jsonSuffix = ".json"
	// hostsSuffix ends the names of the files about blocks of host parts. It differs from
	// jsonSuffix because a rail-agent that does not know sameHost would take these blocks
	// for empty.
	hostsSuffix = ".hosts"
	serverLock  = ".server"
)

// moment is a time of CLOCK_BOOTTIME. Nobody can set this clock, and it also runs while the
// machine is suspended. A moment has a meaning only within one boot.
type moment time.Duration

func now() moment {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return moment(t.Nano())
}

// age returns the time from m to now. It returns the longest possible duration if m is zero
// or later than now: a later m is of another boot.
func (m moment) age(now moment) time.Duration {
	if m == 0 || m > now {
		return time.Duration(1<<63 - 1)
	}
	return time.Duration(now - m)
}

// The states of a block.
const (
	claiming  = "claiming"  // the server may not know the claim yet
	held      = "held"      // the node assigns addresses of the block
	returning = "returning" // the server may have freed the block already
)

// entry is a block in the node's file.
type entry struct {
	Prefix netip.Prefix `json:"prefix"`
	Claim  string       `json:"claim"`
	// Former is the earlier claim of a block that was being returned when the node claimed
	// it again. The server may still have the earlier claim, and may still carry out the
	// return, because the return names that claim.
	Former string `json:"former,omitempty"`
	State  string `json:"state"`
	// Confirmed is when the node sent the request whose answer confirmed that the node
	// holds the block. While the block is being claimed, it is the time when the claim
	// began.
	Confirmed moment `json:"confirmed"`
}

// file is the node's file of the blocks of one pool. It is valid for one boot.
type file struct {
	Boot string `json:"boot"`
	// Kubeconfig, FlatFile, Node and Machine are for rail-agent. It does not know the
	// network's configuration, and in a container it does not know the host's machine ID.
	Kubeconfig string    `json:"kubeconfig"`
	FlatFile   string    `json:"flatFile,omitempty"`
	Node       string    `json:"node"`
	Machine    string    `json:"machine,omitempty"`
	Pool       ipam.Pool `json:"pool"`
	Size       int       `json:"size"` // number of addresses in a block
	// Rails are the pools of the rails that use these blocks, if Pool is an
	// [ipam.HostPool]. The server has a guard for each of them.
	Rails  []ipam.Pool `json:"rails,omitempty"`
	Blocks []entry     `json:"blocks"`
	// Silent is the last time at which the server did not confirm a block. It is 0 if the
	// server has confirmed one since then.
	Silent moment `json:"silent,omitempty"`
	// Full is the last time at which no block was free for a range. FullRange is the text
	// of that range.
	Full      moment `json:"full,omitempty"`
	FullRange string `json:"fullRange,omitempty"`
	// Tried is the number of the block at which the next search for a free one begins.
	Tried uint64 `json:"tried,omitempty"`
}

// find returns the block with the prefix, or nil if the file does not have it.
func (f *file) find(prefix netip.Prefix) *entry {
	i := slices.IndexFunc(f.Blocks, func(e entry) bool { return e.Prefix == prefix })
	if i < 0 {
		return nil
	}
	return &f.Blocks[i]
}

// set adds a block, or replaces the block with the same prefix.
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

// usable returns the blocks whose addresses the node may assign at the time now.
func (f *file) usable(now moment) []netip.Prefix {
	var all []netip.Prefix
	for _, e := range f.Blocks {
		if e.State == held && e.Confirmed.age(now) < api.BlockUsableFor {
			all = append(all, e.Prefix)
		}
	}
	return all
}

// asks reports whether an ADD should ask the server to confirm the node's blocks. It should
// ask if a confirmation is old, except if a block is usable and the server did not answer a
// short time ago.
func (f *file) asks(now moment) bool {
	old := slices.ContainsFunc(f.Blocks, func(e entry) bool { return e.State == held && e.Confirmed.age(now) >= confirmAfter })
	return old && (f.Silent.age(now) >= askAgain || len(f.usable(now)) == 0)
}

// full reports whether the server had no free block for the claim's range a short time ago.
func (f *file) full(c ipam.Claim, now moment) bool {
	return f.Full.age(now) < askAgain && f.FullRange == rangeText(c.Range)
}

func rangeText(r *ipam.Range) string { return fmt.Sprint(r.First(), "-", r.Last()) }

// pool is a pool that is divided into blocks, as this node sees it.
type pool struct {
	*Store
	ipam.Pool
	size int
}

func (p *pool) name() string { return statefile.Name(p.Pool.Name()) }

// fileOf returns the name of the node's file for a pool.
func fileOf(p ipam.Pool) string {
	if p.Node == ipam.HostNode {
		return statefile.Name(p.Name()) + hostsSuffix
	}
	return statefile.Name(p.Name()) + jsonSuffix
}

// read returns the node's file, or an empty one if there is no file of this boot.
func (p *pool) read() (*file, error) {
	f, err := readFile(p.dir, fileOf(p.Pool))
	switch {
	case err == nil && f.Boot == p.self.Boot && f.Pool == p.Pool:
	case err == nil, errors.Is(err, fs.ErrNotExist):
		f = &file{Boot: p.self.Boot, Pool: p.Pool}
	default:
		return nil, err
	}
	f.Kubeconfig, f.FlatFile, f.Node, f.Machine, f.Size = p.kubeconfig, p.flatFile, p.self.Node, p.self.Machine, p.size
	return f, nil
}

func readFile(dir *statefile.Dir, name string) (*file, error) {
	data, err := dir.Read(name)
	if err != nil {
		return nil, err
	}
	f := new(file)
	if err := json.Unmarshal(data, f); err != nil {
		return nil, failure.From(err, failure.BadRecord, "%s", filepath.Join(dir.Path(), name)).
			Cure("remove the file when no pod of this node uses an address of the pool, or reboot the node")
	}
	return f, nil
}

// locked calls do with the node's file while it holds the file's lock. It writes the file
// if do returns true. The lock should be held only for milliseconds, so do must not make a
// request.
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
		jsonErr = p.dir.Write(fileOf(p.Pool), append(data, '\n'))
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
	lock, err := p.dir.Lock(ctx, p.name()+serverLock)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	return do()
}

// aloneNow is like [pool.alone], but it returns nil without calling do if another process
// is asking the server.
func (p *pool) aloneNow(_ context.Context, do func() error) error {
	lock, err := p.dir.TryLock(p.name() + serverLock)
	if errors.Is(err, statefile.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Unlock()
	return do()
}

// eachFile calls do for each file about the node's blocks in the state directory. server is
// the name of the directory of the file's server. Unreadable files are skipped.
func eachFile(stateDir string, do func(server string, f *file)) {
	var files []string
	for _, suffix := range []string{jsonSuffix, hostsSuffix} {
		some, _ := filepath.Glob(filepath.Join(stateDir, storeDir, "*", blocksDir, "*"+suffix)) // the pattern is well-formed
		files = append(files, some...)
	}
	for _, path := range files {
		dir, err := statefile.OpenExisting(filepath.Dir(path))
		if err != nil {
			continue
		}
		if f, err := readFile(dir, filepath.Base(path)); err == nil && filepath.Base(path) == fileOf(f.Pool) {
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

// OnNode returns the blocks in the files in stateDir: those that the node holds, and those
// that a killed process was about to take or to return.
func OnNode(stateDir string) []Held {
	var all []Held
	eachFile(stateDir, func(_ string, f *file) {
		for _, e := range f.Blocks {
			all = append(all, Held{f.Pool, e.Prefix, e.Claim})
		}
	})
	return all
}
