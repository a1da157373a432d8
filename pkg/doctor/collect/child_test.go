package collect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// behaves is the variable that says how the process of a Reader behaves in a test.
const behaves = "COLLECT_TEST_READER"

// readerProcess is the main function of a Reader's process. The process may misbehave, as how says.
func readerProcess(how string) {
	in := os.Stdin
	if dir, ok := strings.CutPrefix(how, "stuck "); ok {
		before := taken(dir)
		go func() { _, _ = os.ReadDir(dir) }()
		for end := time.Now().Add(10 * time.Second); taken(dir) == before && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	switch how {
	case "silent":
		time.Sleep(time.Hour)
	case "large":
		for { // an answer that never ends
			fmt.Print(`{"Facts":{"node":"`, strings.Repeat("x", 1<<20))
		}
	case "hungry", "hungry for pods":
		var q struct{ NoPods string }
		text, err := os.ReadFile("/dev/stdin")
		if err == nil {
			err = json.Unmarshal(text, &q)
		}
		read, write, also := os.Pipe()
		if err = errors.Join(err, also); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() { _, _ = write.Write(text); _ = write.Close() }()
		in = read
		if how == "hungry" || q.NoPods == "" {
			defer func() { // after ReadFor has bounded the memory
				kept := make([][]byte, 0, 1024)
				for range 1024 {
					kept = append(kept, make([]byte, 1<<20))
				}
				runtime.KeepAlive(kept)
			}()
			if err := collect.ReadFor(context.Background(), in, noWriter{}); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			return
		}
	}
	if err := collect.ReadFor(context.Background(), in, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type noWriter struct{}

func (noWriter) Write(p []byte) (int, error) { return len(p), nil }

func readerOf(t *testing.T, how string) *collect.Reader {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(behaves, how)
	return &collect.Reader{Command: []string{exe}}
}

func TestReaderReadsInAProcessOfItsOwn(t *testing.T) {
	need.Root(t)
	l := newLab(t)
	r := readerOf(t, "well")
	o := collect.Options{StateDir: l.state, Node: "n1", Version: "v1", Sample: -1, NoClient: errors.New("no rights"), Status: func() ([]byte, error) { return nil, errors.New("is starting") }}
	var f *fact.Facts
	if err := l.node.Do(func() error { f = r.Node(t.Context(), o); return nil }); err != nil {
		t.Fatal(err)
	}
	if f.Node != "n1" || f.Version != "v1" || !f.Host.Kernel.OK() || len(f.Pods) != 1 {
		t.Fatalf("%+v", f)
	}
	if p := f.Pods[0]; !p.Interfaces.OK() || len(p.Interfaces.Value) != 2 {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(f.Agent.Running.Error, "is starting") {
		t.Errorf("%+v", f.Agent.Running)
	}
}

// TestReaderThatFailsCostsOnlyThePods checks that only facts about pods are missing if a process
// fails because of pods.
func TestReaderThatFailsCostsOnlyThePods(t *testing.T) {
	need.Root(t)
	l := newLab(t)
	r := readerOf(t, "hungry for pods")
	var f *fact.Facts
	if err := l.node.Do(func() error { f = r.Node(t.Context(), collect.Options{StateDir: l.state, Sample: -1}); return nil }); err != nil {
		t.Fatal(err)
	}
	if !f.Host.Kernel.OK() || len(f.Pods) != 1 {
		t.Fatalf("%+v, %+v", f.Host, f.Pods)
	}
	if p := f.Pods[0]; !strings.Contains(p.Interfaces.Error, "the process that read it failed") || p.Containers.OK() || p.GPUs.OK() || p.Devices.OK() {
		t.Errorf("%+v", p)
	}
}

func TestReaderThatAlwaysFailsSaysWhy(t *testing.T) {
	for how, want := range map[string]string{"hungry": "", "large": "failed", "silent": "no answer"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if how == "silent" {
				ctx, cancel = context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
			}
			f := readerOf(t, how).Node(ctx, collect.Options{StateDir: filepath.Join(t.TempDir(), "none"), Sample: -1})
			if f.Host.Kernel.OK() || !strings.Contains(f.Host.Kernel.Error, want) {
				t.Errorf("%+v", f.Host.Kernel)
			}
		})
	}
}
