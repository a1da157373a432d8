package safepath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	const other = 65534
	for name, c := range map[string]struct {
		make func(dir string) (path string, err error)
		want string // "" is safe
	}{
		"root's file": {func(d string) (string, error) {
			return d + "/f", os.WriteFile(d+"/f", nil, 0o644)
		}, ""},
		"root's directory": {func(d string) (string, error) { return d, nil }, ""},
		"below a sticky directory": {func(d string) (string, error) {
			return d + "/tmp/x", errors.Join(os.Mkdir(d+"/tmp", 0o700), os.Chmod(d+"/tmp", 0o777|fs.ModeSticky), os.Mkdir(d+"/tmp/x", 0o700))
		}, ""},
		"another's in a sticky directory": {func(d string) (string, error) {
			return d + "/tmp/x/y", errors.Join(os.Mkdir(d+"/tmp", 0o700), os.Chmod(d+"/tmp", 0o777|fs.ModeSticky),
				os.MkdirAll(d+"/tmp/x/y", 0o700), os.Chown(d+"/tmp/x", other, other))
		}, "/tmp/x belongs to user 65534"},
		"root's directory in a volume that all may write": {func(d string) (string, error) {
			return d + "/volume/state", errors.Join(os.Mkdir(d+"/volume", 0o700), os.Chmod(d+"/volume", 0o777), os.Mkdir(d+"/volume/state", 0o700))
		}, "/volume (mode 0777)"},
		"writable by a group, higher up": {func(d string) (string, error) {
			return d + "/a/b/c", errors.Join(os.MkdirAll(d+"/a/b/c", 0o700), os.Chmod(d+"/a", 0o775))
		}, "/a (mode 0775)"},
		"another's directory, higher up": {func(d string) (string, error) {
			return d + "/a/b/c", errors.Join(os.MkdirAll(d+"/a/b/c", 0o700), os.Chown(d+"/a", other, other))
		}, "/a belongs to user 65534"},
		"a file that others may write": {func(d string) (string, error) {
			return d + "/f", errors.Join(os.WriteFile(d+"/f", nil, 0o600), os.Chmod(d+"/f", 0o666))
		}, "/f (mode 0666)"},
		"a link to what is safe": {func(d string) (string, error) {
			return d + "/link/x", errors.Join(os.MkdirAll(d+"/real/x", 0o700), os.Symlink("../"+filepath.Base(d)+"/real", d+"/link"))
		}, ""},
		"a link to what is not": {func(d string) (string, error) {
			return d + "/link/x", errors.Join(os.MkdirAll(d+"/open/x", 0o700), os.Chmod(d+"/open", 0o777), os.Symlink(d+"/open", d+"/link"))
		}, "/open (mode 0777)"},
		"another's link": {func(d string) (string, error) {
			return d + "/link", errors.Join(os.Mkdir(d+"/real", 0o700), os.Symlink("real", d+"/link"), os.Lchown(d+"/link", other, other))
		}, "/link belongs to user"},
		".. behind a link": {func(d string) (string, error) { // the parent of the target
			return d + "/link/../safe", errors.Join(os.MkdirAll(d+"/open/in", 0o700), os.MkdirAll(d+"/open/safe", 0o700), os.Mkdir(d+"/safe", 0o700),
				os.Chmod(d+"/open", 0o777), os.Symlink(d+"/open/in", d+"/link"))
		}, "/open (mode 0777)"},
		"a loop": {func(d string) (string, error) { return d + "/loop", os.Symlink("loop", d+"/loop") }, "too many levels of symbolic links"},
		"a link of the kernel": {func(d string) (string, error) { // another process' root, whose text is "/"
			return "/proc/self/root" + d, nil
		}, ""},
		"a link of the kernel to what is not": {func(d string) (string, error) {
			return "/proc/self/root" + d + "/open/x", errors.Join(os.MkdirAll(d+"/open/x", 0o700), os.Chmod(d+"/open", 0o777))
		}, "/open (mode 0777)"},
		".. of a link of the kernel": {func(string) (string, error) { return "/proc/self/cwd/../etc", nil }, "leads elsewhere"},
		"a relative path":            {func(string) (string, error) { return "run", nil }, "not an absolute path"},
		"a missing parent":           {func(d string) (string, error) { return d + "/none/x", nil }, "no such file"},
		"a missing name in a directory of others": {func(d string) (string, error) {
			return d + "/open/none", errors.Join(os.Mkdir(d+"/open", 0o700), os.Chmod(d+"/open", 0o777))
		}, "/open (mode 0777)"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "another's") {
				need.Root(t)
			}
			path, err := c.make(t.TempDir())
			must(t, err)
			err = Check(path)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", path, err, c.want)
			}
			if loose := CheckExceptGroups(path); (loose == nil) != (c.want == "" || name == "writable by a group, higher up") {
				t.Errorf("except groups: %v", loose)
			}
			if missing := strings.HasPrefix(c.want, "no such file"); errors.Is(err, fs.ErrNotExist) != missing {
				t.Errorf("%v: taken for missing", err)
			}
		})
	}
}
