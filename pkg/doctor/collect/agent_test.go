package collect_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/keeper"
)

func TestFactsOfARunningAgent(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		l.node.Inside(func() {
			log := slog.New(slog.DiscardHandler)
			nics, err := keeper.New(keeper.Options{StateDirs: []string{l.state}, Log: log})
			if err != nil {
				ended <- err
				return
			}
			defer nics.Close()
			a := agent.New(agent.Options{NodeName: "node-a", Version: "v7", Socket: local.SocketIn(l.state), Log: log})
			a.Add(nics.Component(), component.Component{Name: "nri", Status: func() map[string]any { return map[string]any{"nri": true} }})
			ended <- a.Run(ctx)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	var a *fact.Agent
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if a = l.facts(collect.Options{Sample: -1}).Agent; a.Running.Value || time.Now().After(end) {
			break
		}
	}
	if !a.Running.OK() || a.Version.Value != "v7" || !a.NRI.Value || !a.Memlock.Value || !a.NotReturned.OK() || a.NotReturned.Value != 0 {
		t.Errorf("agent: %+v", a)
	}
}

func TestReplacedAndMissingPlugins(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	o := collect.Options{StateDir: filepath.Join(dir, "state"), BinDir: filepath.Join(dir, "bin"), InstallDir: filepath.Join(dir, "install"), Sample: time.Millisecond}
	record := install.Open(o.InstallDir)
	for _, name := range []string{"host-device", "macvlan", "rdma"} {
		file := install.File{Path: filepath.Join(o.BinDir, name), Source: filepath.Join(testnet.Bin(t), name), Mode: 0o755}
		if _, err := record.Put(t.Context(), file); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.WriteFile(filepath.Join(o.BinDir, "macvlan"), []byte("another program"), 0o600), os.Remove(filepath.Join(o.BinDir, "rdma")))
	if err != nil {
		t.Fatal(err)
	}
	binaries := collect.Node(t.Context(), o).CNI.Binaries
	if !binaries.OK() || len(binaries.Value) != 3 {
		t.Fatalf("plugins: %+v", binaries)
	}
	for _, b := range binaries.Value {
		name := filepath.Base(b.Path)
		ours, missing := b.SHA256 == b.Installed, b.SHA256 == ""
		if b.Installed == "" || ours != (name == "host-device") || missing != (name == "rdma") || (b.Version != "") != b.RailCNI || b.RailCNI != (name == "host-device") || strings.Contains(b.Version, "\n") {
			t.Errorf("plugin: %+v", b)
		}
	}
}
