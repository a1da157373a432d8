package notify

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// Without inotify instances receivers poll, and must run all the same. The
// test runs itself again in a user namespace that has none.
func TestDirsWithoutInotifyInstancesTellNothing(t *testing.T) {
	const inside = "RAIL_CNI_TEST_NO_INOTIFY"
	if os.Getenv(inside) == "" {
		need.Root(t) // some machines give others no user namespace
		cmd := exec.Command("unshare", "--user", "--map-root-user", "sh", "-c", `echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"`,
			"sh", os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var log bytes.Buffer
	d := NewDirs(slog.New(slog.NewTextHandler(&log, nil)))
	if !strings.Contains(log.String(), "max_inotify_instances") {
		t.Errorf("it said %q", log.String())
	}
	d.Watch(t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	d.Run(ctx, func() { t.Error("it tells of a change") })
	if ctx.Err() == nil {
		t.Error("it ended before it was to")
	}
}

func TestDirsTellOfAFile(t *testing.T) {
	dir := t.TempDir()
	d := NewDirs(slog.New(slog.DiscardHandler))
	d.Watch(dir)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := os.WriteFile(filepath.Join(dir, "record"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	told := false
	d.Run(ctx, func() { told = true; cancel() })
	if !told {
		t.Error("it told nothing")
	}
}
