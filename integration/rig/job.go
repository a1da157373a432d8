package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// Job is a test binary and its files and environment.
type Job struct {
	Binary   string   // the test binary, static
	Args     []string // its arguments
	Env      []string // its environment, beside the rig's own variables
	Dir      string   // its working directory, made in the guest with its testdata/
	Binaries string   // directory of our plugins, RAIL_CNI_BIN in the guest
	Peers    string   // directory of the plugins of others, RAIL_CNI_PEERS in the guest
	Module   string   // parameters of the NICs' kernel module
	Files    string   // directory whose files, or their symlinks' targets, the guest has below /; none if empty
}

// Pack writes the machine's file system for a job to path: the image's base,
// and the job's files.
func (j *Job) Pack(image *Image, path string) error {
	if err := image.arch.fits(j.Binary); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	base, err := os.Open(image.Base)
	if err != nil {
		return err
	}
	defer base.Close()
	if _, err := io.Copy(f, base); err != nil {
		return err
	}
	a := newArchive(f)
	a.file(wire.TestBinary, j.Binary)
	peers := j.Peers
	if image.arch.foreign() { // they are built for this machine
		peers = ""
	}
	if err := errors.Join(a.binaries(wire.Binaries, j.Binaries), a.binaries(wire.Peers, peers), a.tree(filepath.Join(j.Dir, "testdata"))); err != nil {
		return err
	}
	if j.Files != "" {
		if err := a.below(j.Files); err != nil {
			return err
		}
	}
	text, err := json.Marshal(wire.Job{Args: j.Args, Dir: j.Dir, Module: j.Module, Env: append([]string{
		"PATH=/bin:/usr/bin:/usr/sbin", "HOME=/root", "TMPDIR=/tmp",
		"RAIL_CNI_BIN=" + wire.Binaries, "RAIL_CNI_PEERS=" + wire.Peers, Mark + "=1",
	}, j.Env...)})
	if err != nil {
		return err
	}
	a.bytes(wire.JobFile, text, 0o644)
	return errors.Join(a.close(), f.Close())
}

// Mark is an environment variable that a test finds set in the rig, and
// nowhere else.
const Mark = "RAIL_CNI_RIG"

// binaries adds the programs in a directory of the host, if it has a name,
// without those in directories below.
func (a *archive) binaries(to, from string) error {
	if from == "" {
		return nil
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("%w (run `make build peers`)", err)
	}
	for _, e := range entries {
		path := filepath.Join(from, e.Name()) // or a link to it
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			a.file(filepath.Join(to, e.Name()), path)
		}
	}
	return nil
}

// below adds the files below a directory to the root. It follows symbolic
// links.
func (a *archive) below(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			a.file(strings.TrimPrefix(path, dir), path)
		}
		return err
	})
}

// tree adds a directory at its path on the host, if it exists.
func (a *archive) tree(root string) error {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			a.file(path, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
