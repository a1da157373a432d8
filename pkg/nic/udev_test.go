package nic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// udevNode returns what machine returns, with the state of a udev. If runs is true, that udev is
// listening.
func udevNode(t *testing.T, runs bool) (h *Host, l *link.Link, entry string) {
	t.Helper()
	h = machine(t)
	h.Udev = scratch.Dir(t) // t.TempDir is too long for a socket's path
	l, err := link.ByName(h.Netns, "ens2")
	if err != nil {
		t.Fatal(err)
	}
	entry = filepath.Join(h.Udev, "data", fmt.Sprintf("n%d", l.Index))
	control, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(h.Udev, "control"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	control.SetUnlinkOnClose(false)
	if !runs {
		_ = control.Close() // a udev that was killed leaves its socket
	}
	t.Cleanup(func() { _ = control.Close() })
	writeFile(t, entry+".other", "I:1\n")
	return h, l, entry
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Error(err)
	}
}

func nameAssign(t *testing.T, h *Host, name, kind string) {
	t.Helper()
	writeFile(t, filepath.Join(h.Sys, "class/net", name, "name_assign_type"), kind+"\n")
}

func TestNICThatNeedsNoNameOfUdevIsNotWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		runs  bool
		kind  string // name_assign_type
		entry string // in udev's database
	}{
		"renamed":                           {true, "4", ""},
		"named by user space when made":     {true, "3", ""},
		"udev left it the kernel's name":    {true, "1", "I:17\nE:ID_NET_NAME_PATH=enp59s0np0\n"},
		"the same, by a predictable driver": {true, "2", "I:17\n"},
		"udev has ended":                    {false, "1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, l, entry := udevNode(t, c.runs)
			nameAssign(t, h, "ens2", c.kind)
			if c.entry != "" {
				writeFile(t, entry, c.entry)
			}
			if waited, err := h.AwaitUdev(t.Context(), l); waited || err != nil {
				t.Errorf("%v, %v", waited, err)
			}
		})
	}
}

func TestNICIsWaitedForUntilUdevHasNamedIt(t *testing.T) {
	for name, done := range map[string]func(t *testing.T, h *Host, entry string){
		"it is renamed": func(t *testing.T, h *Host, _ string) {
			nameAssign(t, h, "roce0", "4")
			l, err := link.ByName(h.Netns, "ens2")
			if err == nil {
				err = link.Rename(h.Netns, l.Index, "roce0")
			}
			if err != nil {
				t.Error(err)
			}
		},
		"it keeps its name": func(t *testing.T, _ *Host, entry string) { writeFile(t, entry, "I:17\n") },
		"it is unplugged": func(t *testing.T, h *Host, _ string) {
			l, err := link.ByName(h.Netns, "ens2")
			if err == nil {
				err = link.Delete(h.Netns, l.Index)
			}
			if err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, l, entry := udevNode(t, true)
			nameAssign(t, h, "ens2", "1")
			writeFile(t, entry, "I:17\nE:ID_RENAMING=1\n")
			end := make(chan time.Time, 1)
			time.AfterFunc(100*time.Millisecond, func() {
				end <- time.Now()
				done(t, h, entry)
			})
			waited, err := h.AwaitUdev(t.Context(), l)
			if !waited || err != nil {
				t.Fatalf("%v, %v", waited, err)
			}
			select {
			case <-end:
			default:
				t.Error("it did not wait")
			}
		})
	}
}

func TestNICThatUdevDoesNotNameIsRefused(t *testing.T) {
	h, l, _ := udevNode(t, true)
	nameAssign(t, h, "ens2", "1")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	waited, err := h.AwaitUdev(ctx, l)
	if !waited || failure.KindOf(err) != failure.TryAgain || !strings.Contains(err.Error(), "ens2") || !strings.Contains(err.Error(), "udevadm trigger") {
		t.Errorf("%v, %v", waited, err)
	}
}
