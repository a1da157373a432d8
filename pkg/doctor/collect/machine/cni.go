package machine

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/credential"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/safepath"
)

// plugins are the names of the rail-cni plugins.
var plugins = []string{"host-device", "macvlan", "rdma", "whereabouts", "ipoib", "sriov", "ib-sriov"}

// module is the path of the rail-cni module in the build information of a program.
const module = "github.com/rail-cni/rail-cni"

// maxProgram is the maximum size of a plugin's file, in bytes.
const maxProgram = 256 << 20

// directory returns the named directory if the caller has named one. Otherwise it returns the last
// directory in which rail-agent's record has files. If there is none, it returns the usual
// directory.
func (c *Reader) directory(named, usual string, find func(path string) string) (string, error) {
	if named != "" {
		return named, nil
	}
	entries, err := c.record()
	for _, e := range slices.Backward(entries) {
		if dir := find(e.Path); dir != "" {
			return dir, nil
		}
	}
	return usual, err
}

func (c *Reader) binDir() (string, error) {
	return c.directory(c.BinDir, "/opt/cni/bin", func(path string) string {
		if !isPlugin(path) {
			return ""
		}
		return filepath.Dir(path)
	})
}

// confDir returns the directory of CNI configurations. By rail-agent's record, this is the
// directory of the files of whereabouts.
func (c *Reader) confDir() (string, error) {
	return c.directory(c.ConfDir, "/etc/cni/net.d", func(path string) string {
		dir := filepath.Dir(path)
		if filepath.Base(dir) != credential.Dir {
			return ""
		}
		return filepath.Dir(dir)
	})
}

// isPlugin reports whether a path in the record is the path of a plugin. The plugin's name may have
// a prefix.
func isPlugin(path string) bool {
	return slices.ContainsFunc(plugins, func(p string) bool { return strings.HasSuffix(filepath.Base(path), p) })
}

// Binaries returns the plugins in the CNI directory and the plugins that rail-agent's record names.
func (c *Reader) Binaries(ctx context.Context) ([]fact.Binary, error) {
	installed, err := c.installed()
	if err != nil {
		return nil, err
	}
	dir, err := c.binDir()
	if err != nil {
		return nil, err
	}
	paths := make([]string, 0, len(plugins)+len(installed))
	for _, name := range plugins {
		paths = append(paths, filepath.Join(dir, name))
	}
	for path := range installed {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	found := []fact.Binary{}
	for _, path := range slices.Compact(paths) {
		b := fact.Binary{Path: path, Installed: installed[path]}
		b.SHA256, err = sum(c.HostPath(path))
		if errors.Is(err, fs.ErrNotExist) && b.Installed == "" {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if info, err := buildinfo.ReadFile(c.HostPath(path)); err == nil && info.Main.Path == module {
			b.RailCNI = true
			b.Version = askVersion(ctx, c.HostPath(path))
		}
		found = append(found, b)
	}
	return found, nil
}

// record returns rail-agent's record of installed files. It returns nil if there is no record.
func (c *Reader) record() ([]*install.Entry, error) {
	exists, err := files.Exists(c.HostPath(c.InstallDir))
	if err != nil || !exists {
		return nil, err
	}
	if !c.IsRoot {
		return nil, files.ErrRoot
	}
	return install.Open(c.HostPath(c.InstallDir)).Entries()
}

// installed returns the checksums of the plugins in rail-agent's record, by path.
func (c *Reader) installed() (map[string]string, error) {
	entries, err := c.record()
	found := map[string]string{}
	for _, e := range entries {
		if isPlugin(e.Path) && len(e.Installed) > 0 {
			found[e.Path] = e.Installed[len(e.Installed)-1]
		}
	}
	return found, err
}

// sum returns the SHA-256 sum of a program. It does not block if the path is a FIFO.
func sum(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular(), info.Size() > maxProgram:
		return "", fmt.Errorf("%s is not a program: %s of %d bytes", path, info.Mode().Type(), info.Size())
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxProgram)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// askVersion runs a rail-cni plugin without CNI_COMMAND and returns the version that it prints
// ("CNI plugin macvlan (rail-cni) v1.2"). It returns "" if another user could have replaced the
// program, or if the program prints something else.
func askVersion(ctx context.Context, path string) string {
	if safepath.Check(path) != nil {
		return ""
	}
	run := exec.CommandContext(ctx, path)
	run.Env = []string{}
	about, err := run.CombinedOutput()
	line, _, _ := strings.Cut(string(about), "\n")
	_, version, ok := strings.Cut(line, "(rail-cni) ")
	if err != nil || !ok {
		return ""
	}
	return version
}

// versionIn returns the version that the linker has set in the program. Without such a version it
// returns the version of the module, or "" if there is none.
func versionIn(info *buildinfo.BuildInfo) string {
	for _, s := range info.Settings {
		if s.Key != "-ldflags" {
			continue
		}
		for _, flag := range strings.Fields(s.Value) {
			if name, version, ok := strings.Cut(strings.Trim(flag, `'"`), "="); ok && strings.HasSuffix(strings.ToLower(name), ".version") {
				return version
			}
		}
	}
	if info.Main.Version == "(devel)" {
		return ""
	}
	return info.Main.Version
}

// Primary returns the path of the file that the runtime uses for the cluster's network, which is
// the first file in the directory (libcni.ConfFiles). It returns "" if there is none.
func (c *Reader) Primary(context.Context) (string, error) {
	dir, err := c.confDir()
	if err != nil {
		return "", err
	}
	names, err := files.Names(c.HostPath(dir)) // sorted by name
	for _, name := range names {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) {
			return filepath.Join(dir, name), nil
		}
	}
	return "", err
}

// Multus returns the version of Multus, which it reads from the program's file. It returns "" if
// the node has no Multus.
func (c *Reader) Multus(context.Context) (string, error) {
	dir, err := c.binDir()
	if err != nil {
		return "", err
	}
	for _, name := range []string{"multus-shim", "multus"} {
		path := filepath.Join(c.HostPath(dir), name)
		exists, err := files.Exists(path)
		if err != nil {
			return "", err
		}
		if !exists {
			continue
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return "", err
		}
		if version := versionIn(info); version != "" {
			return version, nil
		}
		return "", fmt.Errorf("%s does not contain its version", path)
	}
	return "", nil
}
