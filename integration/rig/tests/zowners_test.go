//go:build machines

package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/owners"
	"github.com/rail-cni/rail-cni/integration/rig"
)

// ownersTree is the directory of the managers' packages in the machine.
const ownersTree = "/owners"

// TestNICThatANetworkManagerOwnsComesHome starts a machine, and runs itself in it, with the
// network managers of real hosts, which own a real NIC in the machine's own namespace.
func TestNICThatANetworkManagerOwnsComesHome(t *testing.T) {
	if os.Getenv(rig.Mark) != "" {
		managedNICsComeHome(t)
		return
	}
	tree, err := filepath.Abs(owners.Tree())
	if err != nil {
		t.Fatal(err)
	}
	files := rig.Files(t.TempDir())
	for _, program := range []string{"usr/sbin/NetworkManager", "lib/systemd/systemd-networkd", "usr/bin/dbus-daemon"} {
		if err := putWithLibraries(files, tree, program); err != nil {
			t.Fatalf("%v (run `make owners`)", err)
		}
	}
	out, err := boot(t, []string{"RIG_FILES=" + string(files), "RIG_MEMORY=1024"})
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}

// putWithLibraries adds a program of the packages, and the libraries that it needs, of the
// packages or of this host.
func putWithLibraries(files rig.Files, tree, program string) error {
	if _, err := os.Stat(filepath.Join(tree, program)); err != nil {
		program = filepath.Join("usr", program) // since Debian 13
	}
	cmd := exec.Command("ldd", filepath.Join(tree, program))
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+owners.LibraryPath(tree))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ldd %s: %w\n%s", program, err, out)
	}
	errs := []error{files.Put(filepath.Join(ownersTree, program), filepath.Join(tree, program))}
	for word := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(word, "/") || strings.HasSuffix(word, ":") {
			continue
		}
		at := word
		if of, below := strings.CutPrefix(word, tree); below {
			at = filepath.Join(ownersTree, of)
		}
		errs = append(errs, files.Put(at, word))
	}
	return errors.Join(errs...)
}

func managedNICsComeHome(t *testing.T) {
	must(t, os.Setenv(owners.Variable, ownersTree))
	for name, manager := range owners.Managers {
		for kind, loan := range owners.Loans {
			if kind != "running" && !need.Full() {
				continue // as in integration/owners
			}
			t.Run(name+" "+kind, func(t *testing.T) {
				n := newNode(t)
				p, config, count := n.pod("pod1"), n.config(0, nil), 5
				if kind == "running" || kind == "stopped" {
					count = 50
				}
				manager(owners.NewHost(t, n.Netns), nicName(0)).Lend(rounds(t, count), func() { n.carrier(nicName(0)) }, loan,
					func() { n.MustRun(p.call("ADD", "net1", config)) }, func() { n.MustRun(p.call("DEL", "net1", config)) })
				if left := n.records(); len(left) > 0 {
					t.Errorf("%d records are left", len(left))
				}
			})
		}
	}
}
