package rig

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tools are programs of Debian that the guest gets unchanged; the others are
// busybox'.
//
// busybox' shell is not used: it would run its own "ip" in place of this one.
var tools = []string{"ip", "tc", "bridge", "dcb", "rdma", "ping", "dash"}

// toolPackages have tools and busybox, for a machine of another architecture.
var toolPackages = []string{"iproute2", "iputils-ping", "dash", "busybox-static"}

// userland returns the directory below which the guest's programs are: the
// machine's root, or packages of the guest's architecture, unpacked.
func (b *builder) userland(ctx context.Context) (string, error) {
	if !b.arch.foreign() {
		return "/", nil
	}
	return b.unpacked(ctx, tree{"userland-" + b.arch.name, "20 MB", toolPackages, true})
}

// withDependencies returns these packages and all that they need and that the machine,
// or the series' own lists, have not installed yet.
func (b *builder) withDependencies(ctx context.Context, packages []string) ([]string, error) {
	out, err := b.apt(ctx, "", "apt-get", append([]string{"install", "-q", "--simulate", "--no-install-recommends"}, packages...)...)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(packages)
	for line := range strings.Lines(string(out)) {
		// Inst iproute2 (6.1.0-3 Debian:12.11/oldstable [arm64])
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Inst" && !slices.Contains(all, f[1]) {
			all = append(all, f[1])
		}
	}
	return all, nil
}

// addProgram adds a program of a userland, and its libraries, to names.
func addProgram(ctx context.Context, names map[string]string, root, tool string) error {
	path, err := findProgram(root, tool)
	if err != nil {
		return err
	}
	names[path] = "/bin/" + tool
	if root != "/" {
		return addLibraries(names, root, path)
	}
	addShared(ctx, names, path)
	return nil
}

// addShared adds the libraries of a program or library of this machine to names.
func addShared(ctx context.Context, names map[string]string, path string) {
	// ldd fails for a program that is static.
	out, err := exec.CommandContext(ctx, "ldd", path).Output()
	if err != nil {
		return
	}
	for _, l := range libraryPath.FindAllString(string(out), -1) {
		names[l] = l
	}
}

// addPackaged adds a program of unpacked packages, there or below usr (since Debian 13), to names,
// with the libraries of the packages and of this machine that it loads.
func addPackaged(ctx context.Context, names map[string]string, dir, program, name string) error {
	path := filepath.Join(dir, program)
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(dir, "usr", program)
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("the packages in %s have no %s", dir, program)
	}
	var libraries []string
	for _, below := range []string{"", "usr"} {
		found, err := filepath.Glob(filepath.Join(dir, below, "lib/*-linux-gnu"))
		if err != nil {
			return err
		}
		libraries = append(libraries, found...)
	}
	cmd := exec.CommandContext(ctx, "ldd", path)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", path, err)
	}
	if m := missingLibrary.FindStringSubmatch(string(out)); m != nil {
		return fmt.Errorf("%s needs %s, which is not on this machine", program, m[1])
	}
	for _, l := range libraryPath.FindAllString(string(out), -1) {
		names[l] = strings.TrimPrefix(l, dir)
	}
	names[path] = name
	return nil
}

var missingLibrary = regexp.MustCompile(`(\S+) => not found`)

var libraryPath = regexp.MustCompile(`/\S+\.so\S*`)

func findProgram(root, name string) (string, error) {
	var dirs []string
	if root == "/" {
		dirs = filepath.SplitList(os.Getenv("PATH"))
	}
	for _, dir := range append(dirs, "/usr/bin", "/bin", "/usr/sbin", "/sbin") {
		path := filepath.Join(root, dir, name)
		if info, err := os.Lstat(path); err == nil && (root == "/" || info.Mode().IsRegular()) { // a link may lead out of root
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s below %s", name, root)
}

// addLibraries adds the libraries of an unpacked program or library to names,
// each at its path below root. It does the part of ldd(1), which would run the
// program.
func addLibraries(names map[string]string, root, path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range needed {
		library, err := findLibrary(root, name)
		if err != nil {
			return fmt.Errorf("%w, which %s needs", err, path)
		}
		if names[library] != "" {
			continue
		}
		names[library] = strings.TrimPrefix(library, root)
		if err := addLibraries(names, root, library); err != nil {
			return err
		}
	}
	return nil
}

// findLibrary finds a library where the dynamic linker looks: in the
// architecture's directories, or beside them, where the linker is itself.
func findLibrary(root, name string) (string, error) {
	for _, pattern := range []string{"lib/" + name, "lib/*-linux-gnu/" + name, "usr/lib/*-linux-gnu/" + name} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err == nil && len(found) == 1 {
			return found[0], nil
		}
	}
	return "", errors.New("there is no library " + name)
}
