package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// needed are the commands that build any machine, and their packages, in the
// form of scripts/need.sh.
var needed = []string{"busybox:busybox-static", "depmod:kmod", "xz:xz-utils", "zstd:zstd"}

// need installs the packages whose command is missing (scripts/need.sh).
func (b *builder) need(ctx context.Context, commands []string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(b.root, "scripts", "need.sh"), commands...)
	cmd.Stdout, cmd.Stderr = b.log, b.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the rig needs Debian packages that could not be installed: %w", err)
	}
	return nil
}

// newestKernel asks apt for the newest version of the series, with headers if a
// module is built for it: the archive has many images without.
func (b *builder) newestKernel(ctx context.Context) (string, error) {
	version, err := b.searchKernel(ctx)
	if version != "" || err != nil {
		return version, err
	}
	// A fresh machine has no package lists yet, or old ones.
	if _, err := b.apt(ctx, "", "apt-get", "update", "-q"); err != nil {
		return "", err
	}
	version, err = b.searchKernel(ctx)
	if err == nil && version == "" {
		err = fmt.Errorf("apt knows no package that matches %s: the rig needs Debian 12 or newer on amd64", b.image)
	}
	return version, err
}

func (b *builder) searchKernel(ctx context.Context) (string, error) {
	out, err := b.apt(ctx, "", "apt-cache", "pkgnames", "linux-")
	if err != nil {
		return "", err
	}
	packages := strings.Fields(string(out))
	best, version := "", []int(nil)
	for _, p := range packages {
		m := b.image.FindStringSubmatch(p)
		if m == nil || b.nics == fakeNICs && !slices.Contains(packages, "linux-headers-"+m[1]) {
			continue
		}
		if v := numbers(m[2]); slices.Compare(v, version) > 0 {
			best, version = m[1], v
		}
	}
	return best, nil
}

// numbers returns the parts of a version, 6.18.5, or of a part of one.
func numbers(version string) (all []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // the pattern has digits and dots only
		all = append(all, n)
	}
	return all
}

// apt runs a program of apt, on the series' own lists if it has any. Nothing of
// the machine's own configuration and lists is changed then.
func (b *builder) apt(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	if len(b.sources) == 0 {
		return run(ctx, dir, program, args...)
	}
	aptDir := filepath.Join(b.shared, "apt-"+b.linux)
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(aptDir, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources := filepath.Join(aptDir, "sources.list")
	if err := os.WriteFile(sources, []byte(strings.Join(b.sources, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	status := filepath.Join(aptDir, "status") // of the packages that are installed
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	return run(ctx, dir, program, append([]string{
		"-o", "Dir::Etc::sourcelist=" + sources, "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(aptDir, "lists"), "-o", "Dir::Cache=" + filepath.Join(aptDir, "cache"),
		"-o", "Dir::State::status=" + status, "-o", "APT::Architecture=" + b.arch.name, "-o", "APT::Architectures=" + b.arch.name,
		"-o", "APT::Sandbox::User=root", // the checkout may be closed to apt's user
	}, args...)...)
}

// unpack downloads packages and unpacks them into dir; nothing is installed.
func (b *builder) unpack(ctx context.Context, dir string, packages ...string) error {
	files, err := b.download(ctx, packages...)
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := run(ctx, "", "dpkg-deb", "-x", f, dir); err != nil {
			return err
		}
	}
	return nil
}

// tree is a directory with unpacked packages. Nothing is installed, which might start a service.
type tree struct {
	name, size   string // for the log
	packages     []string
	dependencies bool // also those that the packages need and the machine lacks
}

// unpacked returns the directory, made once for all checkouts.
func (b *builder) unpacked(ctx context.Context, t tree) (string, error) {
	hash, err := hashOf(nil, t.packages...)
	if err != nil {
		return "", err
	}
	kept := filepath.Join(b.shared, t.name+"-"+hash)
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	fmt.Fprintf(b.log, "rig: unpacking %s (%s of Debian packages, once) …\n", t.name, t.size)
	work, err := os.MkdirTemp(b.shared, t.name+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work) // if it is incomplete
	packages := t.packages
	if t.dependencies {
		if packages, err = b.withDependencies(ctx, packages); err != nil {
			return "", err
		}
	}
	if err := b.unpack(ctx, work, packages...); err != nil {
		return "", err
	}
	return kept, os.Rename(work, kept)
}

// run runs a command in dir and returns its stdout; an error contains its
// output.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errOut
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out.Bytes(), errOut.Bytes())
	}
	return out.Bytes(), nil
}
