package sandbox

import (
	"os"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

func TestSandboxIsGoneWhenItsPathLeadsElsewhere(t *testing.T) {
	pod := testnet.NewNetns(t, "pod")
	path := "/run/netns/" + pod.Name
	before := time.Now()
	alive, none, file := Open(path), Open("/nonexistent/netns"), Open(os.Args[0])
	if alive.Born.IsZero() || !alive.Born.Before(before) || !none.Born.IsZero() || !file.Born.IsZero() {
		t.Errorf("born %s, %s, %s; it is %s", alive.Born, none.Born, file.Born, before)
	}
	for _, s := range []Sandbox{alive, none, file, Open("/proc/self/ns/net")} {
		if s.Gone() {
			t.Errorf("%s is gone", s.Path)
		}
	}
	pod.Kill()
	if !alive.Gone() {
		t.Error("it is not gone")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil { // like the state between umount and unlink
		t.Fatal(err)
	}
	defer os.Remove(path)
	if !alive.Gone() {
		t.Error("a file is taken for the namespace")
	}
}
