package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// TestAgentTellsThePluginsWhichStateDirectoriesItKeeps: without this list, a network could keep its
// state in a directory in which nobody ends the attachments of killed pods.
func TestAgentTellsThePluginsWhichStateDirectoriesItKeeps(t *testing.T) {
	l := newLab(t)
	other := filepath.Join(filepath.Dir(l.state), "other")
	inner := filepath.Join(l.state, "inner")
	l.node.NIC("ens1", l.wire)
	list := func() nodefile.StateDirs {
		t.Helper()
		s, err := nodefile.ReadStateDirs(l.state)
		if err != nil || s == nil {
			t.Fatal(s, err)
		}
		return *s
	}
	a := l.start("--state-dir", other, "--state-dir", inner)
	if s := list(); !slices.Equal(s.Kept, []string{l.state, other}) || !slices.Equal(s.Former, []string{inner}) {
		t.Errorf("%+v", s)
	}
	pod := testnet.NewNetns(t, "pod")
	add := l.call("macvlan", "ADD", "ens1", pod, "net1")
	add.Config = strings.ReplaceAll(add.Config, l.state, other)
	l.node.MustRun(add)
	a.end(syscall.SIGTERM)

	// A directory that is removed from the flags is no longer open to networks, but the agent keeps
	// it as long as it contains records.
	a = l.start()
	if s := list(); !slices.Equal(s.Kept, []string{l.state}) || !slices.Equal(s.Former, []string{other}) {
		t.Errorf("%+v", s)
	}
	pod.Kill()
	await(t, "the end of the attachment", busy, func() bool {
		left, err := filepath.Glob(filepath.Join(other, "attachments", "*.json"))
		return err == nil && len(left) == 0
	})
	a.end(syscall.SIGTERM)
	l.start()
	if s := list(); !slices.Equal(s.Kept, []string{l.state}) || len(s.Former) > 0 {
		t.Errorf("%+v", s)
	}
}

func TestAgentWritesAgainWhatThePluginsCannotRead(t *testing.T) {
	l := newLab(t)
	a := l.start("--node-ip", "192.0.2.7")
	ip, dirs := filepath.Join(l.state, "node-ip"), filepath.Join(l.state, nodefile.StateDirsFile)
	want, err := os.ReadFile(dirs)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{ip, dirs} {
		if err := os.WriteFile(path, []byte("noise {"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	await(t, "both files", busy, func() bool {
		if n++; n%100 == 1 { // each change of a link makes the agent look
			l.node.IP("link", "set", "lo", "mtu", []string{"60000", "65536"}[n/100%2])
		}
		text, err := os.ReadFile(ip)
		list, also := os.ReadFile(dirs)
		return err == nil && also == nil && string(text) == "192.0.2.7\n" && string(list) == string(want)
	})
	if len(a.said("node IP was unreadable")) != 1 || len(a.said("list of state directories was unreadable")) != 1 {
		t.Errorf("it said %q", a.said("unreadable"))
	}
}
