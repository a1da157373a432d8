package local

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// Store is the node's address store. It holds nothing open between calls, and
// is safe for concurrent use by goroutines and processes.
type Store struct {
	path   string // <state directory>/ipam
	bootID string // the file with the boot ID
	now    func() time.Time
}

var _ ipam.Store = (*Store)(nil)

// New returns the store below stateDir, an absolute path. It does no input or
// output: the first Allocate makes the directory.
func New(stateDir string) *Store {
	return &Store{
		path:   filepath.Join(stateDir, "ipam"),
		bootID: "/proc/sys/kernel/random/boot_id",
		now:    time.Now,
	}
}

const (
	bootFile = "boot"
	bootLock = "boot.lock"
)

// root opens the store's directory. It first removes the contents of an earlier
// boot, whose pods no longer exist. Unless create is set, a missing directory
// is an error that wraps [fs.ErrNotExist].
func (s *Store) root(ctx context.Context, create bool) (*statefile.Dir, error) {
	open := statefile.OpenExisting
	if create {
		open = statefile.Open
	}
	root, err := open(s.path)
	if err != nil || !root.Durable() {
		return root, err
	}
	if err := s.freshBoot(ctx, root); err != nil {
		_ = root.Close()
		return nil, err
	}
	root.Volatile()
	return root, nil
}

// freshBoot empties root if it is of another boot. Pools are not used before
// the boot file has this boot's ID.
func (s *Store) freshBoot(ctx context.Context, root *statefile.Dir) error {
	boot, err := os.ReadFile(s.bootID)
	if err != nil {
		return failure.From(err, failure.IO, "cannot tell this boot from the last one").Cure("mount /proc, or put the state directory on tmpfs")
	}
	ofThisBoot := func() bool {
		was, err := root.Read(bootFile)
		return err == nil && bytes.Equal(was, boot)
	}
	if ofThisBoot() {
		return nil
	}
	lock, err := root.Lock(ctx, bootLock)
	if err != nil {
		return err
	}
	defer release(lock)
	if ofThisBoot() {
		return nil
	}
	names, err := entries(root)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == unnamedSpace || strings.HasPrefix(name, unnamedSpace+"-") || strings.HasPrefix(name, tmpPrefix) {
			if err := root.RemoveAll(name); err != nil {
				return failure.Wrap(err, failure.IO, "cannot remove the addresses of the last boot")
			}
		}
	}
	return root.Write(bootFile, boot)
}

// pools lists the pools of all address spaces.
func (s *Store) pools(ctx context.Context) ([]ipam.Pool, error) {
	root, err := s.root(ctx, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	spaces, err := entries(root)
	if err != nil {
		return nil, err
	}
	var pools []ipam.Pool
	for _, dir := range spaces {
		space, ok := strings.CutPrefix(dir, unnamedSpace)
		if !ok || space != "" && !strings.HasPrefix(space, "-") {
			continue
		}
		found, readErr := listBelow(root, dir)
		err = errors.Join(err, readErr)
		for _, e := range found {
			if prefix, ok := poolPrefix(e.Name()); ok && e.IsDir() {
				pools = append(pools, ipam.Pool{Space: strings.TrimPrefix(space, "-"), Prefix: prefix})
			}
		}
	}
	return pools, err
}

// listBelow lists everything in the directory name below root.
func listBelow(root *statefile.Dir, name string) ([]fs.DirEntry, error) {
	dir, err := root.SubExisting(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return list(dir)
}
