package rig

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
)

// PackagesVariable is the environment variable with the directory in which all checkouts of a
// user keep the Debian packages that they downloaded.
const PackagesVariable = "RIG_PACKAGES"

// unused is how long a file of a shared directory is kept after its last use. The archive
// has a new kernel every few weeks, under another name.
const unused = 60 * 24 * time.Hour

// packagesDir returns the directory for downloaded packages: the user's, or, for a user
// without one, the checkout's.
func packagesDir(root string) string {
	if dir := os.Getenv(PackagesVariable); dir != "" {
		return dir
	}
	return shared(root, "debian")
}

// debs is a directory of packages. Processes of several checkouts may use it: a package
// appears there complete, under the archive's name for it.
type debs struct{ dir string }

// deb is a package in Debian's archive.
type deb struct{ file, algorithm, sum string }

// debLine matches a line of apt-get --print-uris: URI, file name, size and hash.
var debLine = regexp.MustCompile(`(?m)^'[^']+' (\S+\.deb) \d+ (SHA256|SHA512):([0-9a-f]+)$`)

// parseDebs reads what apt-get download --print-uris prints.
func parseDebs(text string) ([]deb, error) {
	var found []deb
	for _, m := range debLine.FindAllStringSubmatch(text, -1) {
		if filepath.Base(m[1]) != m[1] {
			return nil, fmt.Errorf("apt names a package %s, which is no file name", m[1])
		}
		found = append(found, deb{m[1], m[2], m[3]})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("apt names no package with a hash in %q", text)
	}
	return found, nil
}

// path returns where the directory has the package.
func (s debs) path(d deb) string { return filepath.Join(s.dir, d.file) }

// has reports whether the directory has the package with the archive's contents, and marks it
// as used.
func (s debs) has(d deb) bool {
	f, err := os.Open(s.path(d))
	if err != nil {
		return false
	}
	defer f.Close()
	if d.copy(io.Discard, f) != nil {
		return false
	}
	return used(s.path(d))
}

// used reports whether a file of a shared directory exists, and marks it as used.
func used(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// put copies a downloaded package into the directory, unless its hash is another than the
// archive's.
func (s debs) put(d deb, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	made, err := os.CreateTemp(s.dir, d.file+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(made.Name()) // if it is incomplete
	if err := errors.Join(d.copy(made, f), made.Close()); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.Rename(made.Name(), s.path(d))
}

// copy copies the package, and fails if its hash is another than the archive's.
func (d deb) copy(to io.Writer, from io.Reader) error {
	sum := map[string]hash.Hash{"SHA256": sha256.New(), "SHA512": sha512.New()}[d.algorithm]
	if _, err := io.Copy(io.MultiWriter(to, sum), from); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != d.sum {
		return fmt.Errorf("its %s is %s, and not %s as in the archive: download it again", d.algorithm, got, d.sum)
	}
	return nil
}

// isDeb reports whether a file is a package, or what a killed process left of one.
func isDeb(name string) bool {
	return strings.HasSuffix(name, ".deb") || strings.Contains(name, ".deb.new-")
}

// tidy removes the files of this kind that no checkout has used for long.
func tidy(dir string, now time.Time, kind func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !kind(e.Name()) {
			continue
		}
		if info, statErr := e.Info(); statErr == nil && now.Sub(info.ModTime()) > unused {
			if gone := os.Remove(filepath.Join(dir, e.Name())); !errors.Is(gone, os.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}

// download returns the files of these packages, downloaded unless they are there.
func (b *builder) download(ctx context.Context, packages ...string) ([]string, error) {
	kept := debs{packagesDir(b.root)}
	if err := os.MkdirAll(kept.dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: set %s to a directory for Debian packages", err, PackagesVariable)
	}
	files, err := b.fetch(ctx, kept, packages)
	if err == nil || ctx.Err() != nil {
		return files, err
	}
	// The lists may name a version that is no longer in the archive.
	if _, updateErr := b.apt(ctx, "", "apt-get", "update", "-q"); updateErr != nil {
		return nil, errors.Join(err, updateErr)
	}
	return b.fetch(ctx, kept, packages)
}

// fetch is download with the package lists as they are.
func (b *builder) fetch(ctx context.Context, kept debs, packages []string) (files []string, err error) {
	text, err := b.apt(ctx, "", "apt-get", append([]string{"download", "-q", "--print-uris"}, packages...)...)
	if err != nil {
		return nil, err
	}
	wanted, err := parseDebs(string(text))
	if err != nil {
		return nil, err
	}
	complete := true
	for _, d := range wanted {
		files = append(files, kept.path(d))
		complete = complete && kept.has(d)
	}
	if complete {
		return files, nil
	}
	work, err := scratch.MkdirTemp("rig-debs")
	if err != nil {
		return nil, err
	}
	defer scratch.Remove(work)
	// apt drops root for a download, and warns if it cannot.
	if err := os.Chmod(work, 0o777); err != nil {
		return nil, err
	}
	if _, err := b.apt(ctx, work, "apt-get", append([]string{"download", "-q"}, packages...)...); err != nil {
		return nil, err
	}
	for _, d := range wanted {
		if err := kept.put(d, filepath.Join(work, d.file)); err != nil {
			return nil, err
		}
	}
	return files, tidy(kept.dir, time.Now(), isDeb)
}
