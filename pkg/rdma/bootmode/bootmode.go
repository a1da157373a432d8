package bootmode

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Boot reads and sets the mode in which the RDMA core starts. The mode is the parameter netns_mode
// of the module ib_core, which comes from the files of modprobe(8) and the kernel's command line.
// Boot does not need an RDMA core, and does not change a running one.
type Boot struct {
	// Root is the path of the node's root file system. If it is empty, the root is "/".
	Root string
}

// File is the file that [Boot.Change] writes, below Root.
const File = "/etc/modprobe.d/rail-cni-rdma.conf"

// modprobeDirs are modprobe's directories, in the order of precedence. If several have a file with
// the same name, modprobe reads only the first.
var modprobeDirs = []string{
	"/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d",
}

const commandLine = "/proc/cmdline"

// Setting is one setting of the mode at boot.
type Setting struct {
	File  string    // without Root
	Line  int       // from 1; 0 on the kernel's command line
	Value string    // value of the parameter
	Mode  rdma.Mode // meaning of the value; empty if the kernel refuses the value, and so does not load ib_core
}

// Where returns the place of the setting in a form for people.
func (s Setting) Where() string {
	if s.Line == 0 {
		return s.File
	}
	return fmt.Sprintf("%s:%d", s.File, s.Line)
}

// State is the mode at boot, and where the mode comes from.
type State struct {
	Mode rdma.Mode // empty if the kernel refuses one of the settings and so does not load ib_core
	// Settings are the settings of the module, in the order in which they apply: the last one
	// counts. Without any setting the mode is shared.
	Settings []Setting
	// BuiltIn is set if ib_core is built into the kernel, and not a module. In that case only the
	// command line counts, and Settings has only the settings from there.
	BuiltIn bool
}

// Read returns the mode at boot.
func (b Boot) Read() (State, error) {
	found := State{Mode: rdma.Shared, BuiltIn: b.builtIn()}
	var err error
	if !found.BuiltIn {
		found.Settings, err = b.files()
	}
	line, lineErr := b.commandLine()
	if err := errors.Join(err, lineErr); err != nil {
		return State{}, failure.Wrap(err, failure.IO, "find the RDMA mode at boot")
	}
	found.Settings = append(found.Settings, line...)
	for _, s := range found.Settings {
		if found.Mode = s.Mode; s.Mode == "" {
			break
		}
	}
	return found, nil
}

func (b Boot) path(p string) string { return filepath.Join(cmp.Or(b.Root, "/"), p) }

// files reads modprobe's files in modprobe's order: by name, across all directories.
func (b Boot) files() ([]Setting, error) {
	in := map[string]string{} // name → directory
	var names []string
	for _, dir := range modprobeDirs {
		entries, err := os.ReadDir(b.path(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if _, masked := in[e.Name()]; masked || !strings.HasSuffix(e.Name(), ".conf") {
				continue
			}
			in[e.Name()] = dir
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	var found []Setting
	for _, name := range names {
		file := filepath.Join(in[name], name)
		text, err := os.ReadFile(b.path(file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a dangling link
		}
		if err != nil {
			return nil, err
		}
		found = append(found, optionsOf(file, string(text))...)
	}
	return found, nil
}

// optionsOf returns the settings in a file of modprobe. A backslash continues a line. Only a whole
// line can be a comment.
func optionsOf(file, text string) []Setting {
	var found []Setting
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		first, line := i+1, lines[i]
		for strings.HasSuffix(line, `\`) && i+1 < len(lines) {
			i++
			line = strings.TrimSuffix(line, `\`) + " " + lines[i]
		}
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "options" || underscored(words[1]) != "ib_core" {
			continue
		}
		for _, w := range words[2:] {
			if s, ok := settingOf(w); ok {
				s.File, s.Line = file, first
				found = append(found, s)
			}
		}
	}
	return found
}

// commandLine reads the kernel's command line, which modprobe applies after its files.
func (b Boot) commandLine() ([]Setting, error) {
	text, err := os.ReadFile(b.path(commandLine))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var found []Setting
	for _, w := range strings.Fields(string(text)) {
		module, parameter, _ := strings.Cut(strings.Trim(w, `"`), ".")
		if s, ok := settingOf(parameter); ok && underscored(module) == "ib_core" {
			s.File = commandLine
			found = append(found, s)
		}
	}
	return found, err
}

// settingOf reads "netns_mode=0".
func settingOf(word string) (Setting, bool) {
	name, value, given := strings.Cut(word, "=")
	if underscored(name) != "netns_mode" {
		return Setting{}, false
	}
	if !given {
		value = "1" // a bool parameter needs no value
	}
	value = strings.Trim(value, `"`)
	return Setting{Value: value, Mode: modeOf(value)}, true
}

// underscored returns the name of a module or a parameter in the kernel's form, for comparison.
func underscored(s string) string { return strings.ReplaceAll(s, "-", "_") }

// modeOf reads a bool as the kernel does (kstrtobool): by its first letters.
func modeOf(value string) rdma.Mode {
	v := strings.ToLower(value)
	switch {
	case strings.HasPrefix(v, "y"), strings.HasPrefix(v, "t"), strings.HasPrefix(v, "1"), strings.HasPrefix(v, "on"):
		return rdma.Shared
	case strings.HasPrefix(v, "n"), strings.HasPrefix(v, "f"), strings.HasPrefix(v, "0"), strings.HasPrefix(v, "of"):
		return rdma.Exclusive
	}
	return ""
}

// builtIn reports whether the running kernel contains ib_core. If there is no list of built-in
// modules (the root may be a container's own root), ib_core counts as a module.
func (b Boot) builtIn() bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	list, err := os.ReadFile(b.path(filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]), "modules.builtin")))
	return err == nil && strings.Contains(string(list), "/ib_core.ko")
}

// set makes m the mode at boot by atomically writing [File]. It reports whether it wrote the file.
// It writes nothing and returns an error if the file would have no effect, because a setting with
// precedence contradicts it, or because ib_core is not a module. It writes nothing and returns no
// error if the kernel's command line sets m already and ib_core is built in, or the file would not
// survive the next boot.
func (b Boot) set(m rdma.Mode) (written bool, err error) {
	if m != rdma.Shared && m != rdma.Exclusive {
		return false, unknownMode(m)
	}
	now, err := b.Read()
	if err != nil {
		return false, err
	}
	if now.BuiltIn && now.Mode != m {
		return false, failure.New(failure.InvalidConfig, "ib_core is built into this kernel, so modprobe.d does not apply").Cure("%s", b.ByArgument(m))
	}
	if now.BuiltIn {
		return false, nil
	}
	for _, s := range now.Settings {
		if err := s.hinders(m); err != nil {
			return false, err
		}
	}
	if now.Mode == m && now.byArgument() && (b.Volatile() || b.Immutable()) {
		return false, nil // the file would be read too late, or would not survive the reboot
	}
	err = writeWhole(b.path(File), fmt.Sprintf(`# Written by "railctl rdma mode %s". 0 is exclusive, 1 is shared.
options ib_core netns_mode=%d
`, m, m.Parameter()))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EROFS) && now.Mode == m && now.byArgument():
		return false, nil
	case errors.Is(err, unix.EROFS):
		return false, failure.New(failure.IO, "%s cannot be written: the file system is read-only on this node", File).Cure("%s", b.ByArgument(m))
	}
	return false, failure.From(err, failure.IO, "set the RDMA mode at boot").
		Cure("make the directory writable for root; in a container mount the node's root file system")
}

// hinders returns an error if the setting overrides the setting of [File].
func (s Setting) hinders(m rdma.Mode) error {
	file, other := filepath.Base(File), filepath.Base(s.File)
	switch {
	case s.File != commandLine && other == file:
		return nil // the setting is replaced, or no longer read
	case s.Mode == "":
		return failure.New(failure.InvalidConfig, "%s sets netns_mode=%s, with which the kernel does not load ib_core", s.Where(), s.Value).
			Cure("remove that setting")
	case s.Mode != m && (s.File == commandLine || other > file):
		return failure.New(failure.InvalidConfig, "%s sets netns_mode=%s, which overrides %s", s.Where(), s.Value, File).Cure("remove that setting")
	}
	return nil
}

// writeWhole atomically replaces a file, also with respect to a power failure.
func writeWhole(path, text string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".rail-cni-*") // modprobe ignores this name
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RebuildInitramfs returns the command that rebuilds the node's initramfs, which has copies of
// modprobe's files. It returns "" if none of the usual programs is installed, or if the initramfs
// is part of the system's image, which these programs do not change.
func (b Boot) RebuildInitramfs() string {
	if b.Immutable() {
		return ""
	}
	for _, command := range []string{"update-initramfs -u -k all", "dracut --force --regenerate-all", "mkinitcpio -P"} {
		program, _, _ := strings.Cut(command, " ")
		for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
			if _, err := os.Stat(b.path(filepath.Join(dir, program))); err == nil {
				return command
			}
		}
	}
	return ""
}

func unknownMode(m rdma.Mode) error {
	return failure.New(failure.InvalidConfig, "unknown RDMA mode %q", m).Cure(`use "shared" or "exclusive"`)
}
