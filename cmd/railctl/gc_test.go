package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func TestGCEndsWhatHasNoPod(t *testing.T) {
	l := newLab(t)
	dead := l.lend()
	l.share("web-1", "c1")
	dead.Delete()

	dry := l.must("gc", "--dry-run")
	equal(t, "gc --dry-run", squeezed(dry), `POD IFNAME PLUGIN NIC ADDRESSES WHY OUTCOME
default/web-0 net1 host-device ens12np0 172.31.1.2/24 its pod netns `+dead.Path+` is gone would be ended`)
	if n := len(listed[inventory.Attachment](t, l.must("show", "-o", "json"))); n != 2 {
		t.Errorf("%d attachments after a dry run, not 2", n)
	}

	// A veth dies with its namespace, which the log reports.
	out, errOut, code := l.railctl("gc")
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, errOut)
	}
	equal(t, "gc", squeezed(out), strings.ReplaceAll(squeezed(dry), "would be ended", "ended"))
	left := listed[inventory.Attachment](t, l.must("show", "-o", "json"))
	if len(left) != 1 || left[0].Pod != "default/web-1" {
		t.Errorf("left are %+v, not web-1 alone", left)
	}
	contains(t, "gc again", l.must("gc"), "nothing to end")
	if held, _ := filepath.Glob(filepath.Join(l.state, "ipam", "*", "*", "172.31.1.2.json")); len(held) != 0 {
		t.Errorf("the address is still held: %v", held)
	}
}

func TestGCSaysWhatCannotBeFreed(t *testing.T) {
	l := newLab(t)
	l.lend().Delete()
	plugin := filepath.Join(l.path, "whereabouts")
	if err := os.Remove(plugin); err != nil {
		t.Fatal(err)
	}
	for _, why := range []string{"is gone", "its addresses are still to be freed"} {
		out, errOut, code := l.railctl("gc", "-o", "json")
		if code != 1 {
			t.Errorf("exit code %d, not 1", code)
		}
		contains(t, "stderr", errOut, "1 of 1 attachments could not be ended")
		e := listed[inventory.Ending](t, out)
		if len(e) != 1 || e[0].Outcome != inventory.NotEnded || e[0].Phase != ledger.Freeing {
			t.Fatalf("endings are %+v", e)
		}
		contains(t, "error", e[0].Error, `IPAM plugin "whereabouts"`, l.path)
		contains(t, "why", e[0].Why, why)
	}
	if err := os.Symlink(filepath.Join(testnet.Bin(t), "whereabouts"), plugin); err != nil {
		t.Fatal(err)
	}
	contains(t, "gc", l.must("gc"), "ended")
	contains(t, "show", l.must("show"), "no attachments")
}

func TestGCNamesTheReasonOfAFailure(t *testing.T) {
	l := newLab(t)
	l.lend().Delete()
	plugin := filepath.Join(l.path, "whereabouts")
	if err := os.Remove(plugin); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\necho '{\"code\": 11, \"msg\": \"the store sleeps\"}'\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, _, code := l.railctl("gc")
	if code != 1 {
		t.Errorf("exit code %d, not 1", code)
	}
	contains(t, "gc", out, "not ended: ", "the store sleeps")
}

func TestGCLeavesWhatAnotherProcessWorksOn(t *testing.T) {
	l := newLab(t)
	l.share("web-1", "c1").Delete()
	held, err := ledger.Open(l.state)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	lock, err := held.LockAttachment(context.Background(), ledger.Key{ContainerID: "c1", IfName: "net1"})
	if err != nil {
		t.Fatal(err)
	}
	out, _, code := l.railctl("gc")
	if code != 1 {
		t.Errorf("exit code %d, not 1", code)
	}
	contains(t, "gc", out, "busy: another process works on it")
	if err := lock.UnlockAndRemove(); err != nil {
		t.Fatal(err)
	}
	contains(t, "gc", l.must("gc"), "ended")
}

func TestGCLeavesOtherHostNetnsAlone(t *testing.T) {
	l := newLab(t)
	l.share("web-1", "c1").Delete()
	out, errOut, code := railctlIn(testnet.NewNetns(t, "node"), "gc", "--state-dir", l.state)
	if code != 0 || errOut != "" {
		t.Errorf("exit code %d, stderr %s", code, errOut)
	}
	contains(t, "gc elsewhere", out, "nothing to end")
	contains(t, "gc", l.must("gc"), "ended")
}
