package watch_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/inventory/watch"
	"github.com/rail-cni/rail-cni/pkg/notify"
)

func TestWatchLooksAfterChanges(t *testing.T) {
	n, state := testnet.NewNetns(t, "node"), t.TempDir()
	attachments := filepath.Join(state, "attachments")
	looks := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	dirs := notify.NewDirs(slog.New(slog.DiscardHandler))
	defer dirs.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		log := slog.New(slog.DiscardHandler)
		watch.NICs(ctx, n.Netns, dirs, []string{state}, component.NewReporter("inventory", log, nil), log, func() { looks <- struct{}{} })
	})
	await := func(what string) {
		t.Helper()
		select {
		case <-looks:
		case <-time.After(8 * time.Second): // far less than the pause without a change
			t.Fatal("no look " + what)
		}
	}
	write := func(name string) func() error {
		return func() error { return os.WriteFile(filepath.Join(attachments, name), nil, 0o600) }
	}
	await("at the start")
	for _, c := range []struct {
		what   string
		change func() error
	}{
		{"after the first ledger", func() error { return os.Mkdir(attachments, 0o700) }},
		{"after a record", write("a@net1.json")},
		{"after the removal of a record", func() error { return os.Remove(filepath.Join(attachments, "a@net1.json")) }},
		{"after a change of a link", func() error { n.IP("link", "set", "lo", "mtu", "1400"); return nil }},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		await(c.what)
	}
	for i := range 50 {
		if err := write(string(rune('a' + i)))(); err != nil {
			t.Fatal(err)
		}
	}
	await("after many records")
	if more := len(looks); more > 1 {
		t.Errorf("%d more looks at changes that came together", more)
	}
}
