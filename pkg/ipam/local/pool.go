package local

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

const (
	poolFile        = "pool.json"
	lockFile        = "lock"
	busyFile        = "busy"
	byPodDir        = "by-pod"
	byAttachmentDir = "by-attachment"
	tmpPrefix       = ".tmp-" // see package statefile
)

// poolInfo is pool.json.
type poolInfo struct {
	Version int    `json:"version"`
	Range   string `json:"range"`
	Space   string `json:"networkName,omitempty"`
}

// pool is an open pool. Close it when done.
type pool struct {
	store        *Store
	id           ipam.Pool
	dir          *statefile.Dir
	byPod        index
	byAttachment index
	reserved     *reservations
	open         []*statefile.Dir
	nameless     bool // pool.json does not exist yet
	// rails are the pools of the other rails in which the host part of a new address must
	// be free, or nil if there are none.
	rails *rails

	lock  *statefile.Lock // nil while unlocked
	busy  *os.File
	pages *pages
}

// poolDir returns the name of a pool's directory in its address space.
func poolDir(prefix netip.Prefix) string {
	return strings.Replace(prefix.String(), "/", "_", 1)
}

// poolPrefix is the inverse of poolDir. It returns false for a name that poolDir never
// returns.
func poolPrefix(name string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(strings.Replace(name, "_", "/", 1))
	return p, err == nil && poolDir(p.Masked()) == name
}

const unnamedSpace = "space"

// spaceDir returns the name of an address space's directory.
func spaceDir(space string) string {
	if space == "" {
		return unnamedSpace
	}
	return statefile.Name(unnamedSpace + "-" + space)
}

// openPool opens a pool's directories. If create is not set, it returns an error that wraps
// [fs.ErrNotExist] for a missing pool. It returns this error, too, for a pool that was
// never completed, and so has no records.
func (s *Store) openPool(ctx context.Context, id ipam.Pool, create bool) (*pool, error) {
	root, err := s.root(ctx, create)
	if err != nil {
		return nil, err
	}
	p := &pool{store: s, id: id, open: []*statefile.Dir{root}}
	if err := p.openDirs(root, create); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pool) openDirs(root *statefile.Dir, create bool) error {
	var err error
	open := (*statefile.Dir).SubExisting
	if create {
		open = (*statefile.Dir).Sub
	}
	sub := func(parent *statefile.Dir, name string) *statefile.Dir {
		if err != nil {
			return nil
		}
		var d *statefile.Dir
		if d, err = open(parent, name); err == nil {
			p.open = append(p.open, d)
		}
		return d
	}
	space := sub(root, spaceDir(p.id.Space))
	p.dir = sub(space, poolDir(p.id.Prefix))
	p.byPod.dir = sub(p.dir, byPodDir)
	p.byAttachment.dir = sub(p.dir, byAttachmentDir)
	p.reserved = &reservations{space: space, dir: sub(space, reservedDir), pool: poolDir(p.id.Prefix)}
	if err != nil {
		return err
	}
	return p.checkInfo()
}

// close unlocks and closes everything.
func (p *pool) close() {
	p.unlock()
	for _, d := range p.open {
		_ = d.Close()
	}
}

// checkInfo compares pool.json with the requested pool. A pool has no pool.json until the
// first holder of its lock has written the file.
func (p *pool) checkInfo() error {
	path := filepath.Join(p.dir.Path(), poolFile)
	data, err := p.dir.Read(poolFile)
	if errors.Is(err, fs.ErrNotExist) {
		p.nameless = true
		return nil
	}
	if err != nil {
		return failure.From(err, failure.IO, "address pool %s", path).Cure("make the file readable for root")
	}
	var info poolInfo
	if err := json.Unmarshal(data, &info); err != nil {
		return failure.From(err, failure.BadRecord, "address pool %s is corrupt", path).Cure("remove the file if the records beside it belong to the network that its directory is named after")
	}
	if info.Version > recordVersion {
		return failure.New(failure.BadRecord, "address pool %s was written by a newer version (%d)", path, info.Version).
			Cure("use the newer version of the plugin")
	}
	if info.Range != p.id.Prefix.String() || info.Space != p.id.Space {
		return failure.New(failure.BadRecord, "address pool %s has the range %q and the network_name %q, but the configuration has %q and %q",
			path, info.Range, info.Space, p.id.Prefix, p.id.Space).
			Cure("move the directory away when no pod uses its addresses")
	}
	return nil
}

func (p *pool) writeInfo() error {
	info := poolInfo{Version: recordVersion, Range: p.id.Prefix.String(), Space: p.id.Space}
	data, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	return p.dir.Write(poolFile, append(data, '\n'))
}

// The contents of the file busy. Both have the same length, because the file is
// overwritten in place, so that a DEL needs no space on a full file system.
const (
	busyText = "busy\n"
	idleText = "idle\n"
)

// acquire takes the pool's lock, and tidies up if its last holder was killed.
func (p *pool) acquire(ctx context.Context) error {
	lock, err := p.dir.Lock(ctx, lockFile)
	if err != nil {
		return err
	}
	p.lock = lock
	p.pages = &pages{dir: p.dir, loaded: map[netip.Addr]*page{}}
	p.busy, err = p.dir.OpenFile(busyFile, os.O_RDWR|os.O_CREATE)
	if err == nil {
		err = p.begin(ctx)
	}
	return failure.From(err, failure.IO, "address pool %s", p.dir.Path()).Cure("make the directory writable for root and free space on its file system")
}

func (p *pool) begin(ctx context.Context) error {
	text := make([]byte, len(busyText))
	n, err := p.busy.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n > 0 && string(text) != idleText {
		if err := p.tidy(ctx); err != nil {
			return err
		}
	}
	if _, err := p.busy.WriteAt([]byte(busyText), 0); err != nil {
		return err
	}
	if !p.nameless {
		return nil
	}
	err = p.writeInfo()
	if err != nil {
		p.end(ctx, err)
	}
	return err
}

// end marks the pool as consistent after an operation that returned err, so that the next
// holder of the lock need not tidy up. If err is an error other than a refusal, end tidies
// up first. If that fails, the pool stays marked as busy.
func (p *pool) end(ctx context.Context, err error) {
	if err != nil && !refusal(err) {
		ctx, cancel := afterwards(ctx)
		defer cancel()
		if tidyErr := p.tidy(ctx); tidyErr != nil {
			return
		}
	}
	_, _ = p.busy.WriteAt([]byte(idleText), 0)
}

// afterwards returns a context for cleaning up, which works even if ctx has
// ended.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}

// refusal reports whether err is a refusal. After another error the state on
// the disk is unknown.
func refusal(err error) bool { return failure.KindOf(err) == failure.IPAM }

func (p *pool) unlock() {
	if p.busy != nil {
		_ = p.busy.Close()
		p.busy = nil
	}
	if p.lock != nil {
		release(p.lock)
		p.lock = nil
	}
	p.pages = nil
}

// release releases a lock. Closing its file always unlocks it.
func release(l *statefile.Lock) { _ = l.Unlock() }

// tidy removes the leftovers of killed processes (temporary files, links and
// reservations without a record) and rebuilds the map. Its cost grows with the
// pool. The caller holds the lock.
func (p *pool) tidy(ctx context.Context) error {
	names, err := entries(p.dir)
	if err != nil {
		return err
	}
	taken, bases := &ipam.Set{}, map[netip.Addr]bool{}
	for _, name := range names {
		if addr, ok := recordAddr(name); ok {
			taken.Add(addr)
			bases[ipam.PageBase(addr)] = true
		} else if base, ok := strings.CutPrefix(name, "map-"); ok {
			if a, err := netip.ParseAddr(base); err == nil {
				bases[ipam.PageBase(a)] = true
			}
		} else if strings.HasPrefix(name, tmpPrefix) {
			err = errors.Join(err, p.dir.Remove(name))
		}
	}
	return errors.Join(err,
		p.byPod.tidy(taken), p.byAttachment.tidy(taken),
		p.reserved.tidy(ctx), p.pages.rebuild(taken, bases))
}

// tidy removes the links to missing records.
func (x index) tidy(taken *ipam.Set) error {
	names, err := entries(x.dir)
	for _, name := range names {
		if addr, ok := x.get(name); !ok || !taken.Has(addr) {
			err = errors.Join(err, x.dir.Remove(name))
		}
	}
	return err
}

// entries returns the names of everything in d, including temporary files.
func entries(d *statefile.Dir) ([]string, error) {
	found, err := list(d)
	names := make([]string, len(found))
	for i, e := range found {
		names[i] = e.Name()
	}
	return names, err
}

// list returns everything in d.
func list(d *statefile.Dir) ([]fs.DirEntry, error) {
	f, err := d.OpenFile(".", os.O_RDONLY)
	if err != nil {
		return nil, failure.From(err, failure.IO, "%s", d.Path()).Cure("make the directory readable for root")
	}
	defer f.Close()
	found, err := f.ReadDir(-1)
	return found, failure.From(err, failure.IO, "%s", d.Path()).Cure("make the directory readable for root")
}
