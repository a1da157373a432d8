package collect

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

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/safepath"
)

// plugins are the names of our plugins.
var plugins = []string{"host-device", "macvlan", "rdma", "whereabouts"}

// module is the path of our module in a program.
const module = "github.com/rail-cni/rail-cni"

// mostProgram bounds the size of a plugin, in bytes.
const mostProgram = 256 << 20

// ofCNI takes the facts of the CNI directories.
func (c *collector) ofCNI(ctx context.Context, to *doctor.CNI) {
	take(ctx, c, &to.Binaries, c.at(c.BinDir), localTime, c.binaries)
	take(ctx, c, &to.Primary, c.at(c.ConfDir), localTime, c.primary)
	take(ctx, c, &to.Multus, c.at(c.BinDir), localTime, c.multus)
}

// binaries returns the plugins in the CNI directory, and those that rail-agent's record names.
func (c *collector) binaries(ctx context.Context) ([]doctor.Binary, error) {
	installed, err := c.installed()
	if err != nil {
		return nil, err
	}
	paths := make([]string, 0, len(plugins)+len(installed))
	for _, name := range plugins {
		paths = append(paths, filepath.Join(c.BinDir, name))
	}
	for path := range installed {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	found := []doctor.Binary{}
	for _, path := range slices.Compact(paths) {
		b := doctor.Binary{Path: path, Installed: installed[path]}
		b.SHA256, err = sum(c.at(path))
		if errors.Is(err, fs.ErrNotExist) && b.Installed == "" {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if info, err := buildinfo.ReadFile(c.at(path)); err == nil && info.Main.Path == module {
			b.Version = askVersion(ctx, c.at(path))
		}
		found = append(found, b)
	}
	return found, nil
}

// installed returns the checksums of the plugins in rail-agent's record, by path.
func (c *collector) installed() (map[string]string, error) {
	there, err := exists(c.at(c.InstallDir))
	if err != nil || !there {
		return nil, err
	}
	if !c.root {
		return nil, errRoot
	}
	entries, err := install.Open(c.at(c.InstallDir)).Entries()
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, e := range entries {
		name := filepath.Base(e.Path)
		isPlugin := slices.ContainsFunc(plugins, func(p string) bool { return strings.HasSuffix(name, p) })
		if isPlugin && len(e.Ours) > 0 {
			found[e.Path] = e.Ours[len(e.Ours)-1]
		}
	}
	return found, nil
}

// sum returns the SHA-256 of a program, without blocking on a FIFO.
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
	case !info.Mode().IsRegular(), info.Size() > mostProgram:
		return "", fmt.Errorf("%s is not a program: %s of %d bytes", path, info.Mode().Type(), info.Size())
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, mostProgram)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// askVersion asks one of our plugins for its version, as a person does who runs it without
// CNI_COMMAND: "CNI plugin macvlan (rail-cni) v1.2". It returns "" if another user could have
// replaced the program, or if it does not answer so.
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

// versionIn returns the version that the linker has set, else that of the module, "" if the
// program has none.
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

// primary returns the path of the file that the runtime takes for the cluster's network: the
// first of the directory (libcni.ConfFiles), "" if there is none.
func (c *collector) primary(context.Context) (string, error) {
	names, err := namesIn(c.at(c.ConfDir)) // in the order of names
	for _, name := range names {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) {
			return filepath.Join(c.ConfDir, name), nil
		}
	}
	return "", err
}

// multus returns the version of Multus by its program, "" if the node has none.
func (c *collector) multus(context.Context) (string, error) {
	for _, name := range []string{"multus-shim", "multus"} {
		path := filepath.Join(c.at(c.BinDir), name)
		there, err := exists(path)
		if err != nil {
			return "", err
		}
		if !there {
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
