package plans_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// nodeFile writes the node file of the plugins that the test runs from now on.
// The bench's state directory stays permitted, unless the text has paths.
func nodeFile(t *testing.T, text string) {
	t.Helper()
	path := os.Getenv(nodefile.PathEnv)
	if path == testnet.OpenNodeFile {
		path = filepath.Join(t.TempDir(), "node.yaml")
		t.Setenv(nodefile.PathEnv, path)
	}
	if _, err := nodefile.Parse([]byte(text)); err == nil && !strings.Contains(text, "paths:") {
		text += "\npaths: [/**]"
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// spied returns a CNI_PATH whose IPAM plugin "spy" writes a mark when it is
// called.
func spied(t *testing.T) (path, mark string) {
	t.Helper()
	dir := t.TempDir()
	mark = filepath.Join(dir, "called")
	writeExecutable(t, filepath.Join(dir, "spy"), "#!/bin/sh\n: >"+mark+"\necho '{\"code\":11,\"msg\":\"no\"}'\nexit 1\n")
	return dir, mark
}

// Both plugins refuse before the first change: no record, and no call of IPAM.
func TestWhatTheNodeFileDoesNotOpenIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		more  map[string]any
		code  uint
		texts []string
	}{
		"another name":                  {"nics: [{name: ens1np*}]", nil, cnierr.NICProtected, []string{nicName + " is not open to networks on this node", `add this NIC to "nics" in`}},
		"no NIC":                        {"nics: []", nil, cnierr.NICProtected, []string{"is not open"}},
		"a PCI address that it has not": {`nics: [{name: "*", pci: "0000:*"}]`, nil, cnierr.NICProtected, []string{"is not open"}},
		"a driver that it has not":      {`nics: [{driver: "*_core"}]`, nil, cnierr.NICProtected, []string{"is not open"}},
		"with DPDKMode, too":            {"nics: []", map[string]any{"DPDKMode": true}, cnierr.NICProtected, []string{"is not open"}},
		"malformed":                     {"nics: [{nam: x}]", nil, cnierr.InvalidConfig, []string{"field nam not found", "node file", "correct the file"}},
		"empty":                         {"", nil, cnierr.InvalidConfig, []string{"it is empty"}},
		"a state directory":             {"paths: [/nowhere/*]", nil, cnierr.InvalidConfig, []string{`"stateDir"`, `add the path to "paths"`}},
	} {
		for _, plugin := range []string{"host-device", "macvlan"} {
			t.Run(plugin+", "+name, func(t *testing.T) {
				b := newBench(t)
				nodeFile(t, c.file)
				before := b.node.State()
				dir, mark := spied(t)
				more := map[string]any{"ipam": map[string]any{"type": "spy"}}
				maps.Copy(more, c.more)
				config := b.config(more)
				if plugin == "macvlan" {
					config = b.macvlanConfig(more)
				}
				call := b.call("ADD", config)
				call.Path = testnet.Bin(t) + ":" + dir
				_, err := b.node.Run(call)
				fails(t, err, c.code, c.texts...)
				_, err = b.node.Run(call.With("STATUS"))
				status := c.code
				if status == cnierr.NICProtected {
					status = cnierr.NotAvailable
				}
				fails(t, err, status, c.texts[0])
				if _, err := os.Stat(mark); err == nil {
					t.Error("IPAM was asked for an address")
				}
				if c.code == cnierr.InvalidConfig {
					if _, err := os.Stat(b.state); err == nil {
						t.Error("the state directory was made")
					}
				}
				b.untouched(before)
			})
		}
	}
	t.Run("a guardrail's override", func(t *testing.T) {
		b := newBench(t)
		b.node.IP("route", "add", "default", "dev", nicName, "metric", "4000")
		nodeFile(t, "nics: [{name: ens*}]\nallow: [member]")
		before := b.node.State()
		_, err := b.node.Run(b.call("ADD", b.config(map[string]any{"allow": []string{netconf.AllowUplink}})))
		fails(t, err, cnierr.NICProtected, `may not override the guardrail "uplink"`, `add it to "allow" in`)
		b.untouched(before)
	})
	t.Run("the master that the default route chooses", func(t *testing.T) {
		b := newBench(t)
		b.node.IP("route", "add", "default", "dev", nicName, "metric", "4000")
		nodeFile(t, "nics: [{name: rail*}]")
		before := b.node.State()
		_, err := b.node.Run(b.call("ADD", b.macvlanConfig(map[string]any{"master": nil})))
		fails(t, err, cnierr.NICProtected, nicName)
		b.untouched(before)
	})
}

func TestWhatTheNodeFileOpensIsLent(t *testing.T) {
	for name, file := range map[string]string{
		"by name":    `nics: [{pci: "0000:3b:*"}, {name: ens*np0}]`,
		"by altname": "nics: [{name: enp4s0np0}]",
		"by default": "allow: []",
		"by path":    "paths: [TMP/*/state]",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			nodeFile(t, strings.ReplaceAll(file, "TMP", filepath.Dir(filepath.Dir(b.state))))
			before := b.node.State()
			for _, config := range []string{b.config(nil), b.macvlanConfig(nil)} {
				b.node.MustRun(b.call("STATUS", config))
				b.node.MustRun(b.call("ADD", config))
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
			}
		})
	}
	t.Run("a master in the pod is not the node's", func(t *testing.T) {
		b := newBench(t)
		nodeFile(t, "nics: []")
		b.pod.NIC("eth0", b.wire)
		config := b.macvlanConfig(map[string]any{"master": "eth0", "linkInContainer": true})
		b.node.MustRun(b.call("ADD", config))
		b.node.MustRun(b.call("DEL", config))
	})
}

// NICs that were lent while the file permitted it, or without a node file, are
// returned with any content of the file.
func TestWhatWasLentComesHomeWhateverTheNodeFileSaysNow(t *testing.T) {
	for name, file := range map[string]string{
		"closed": "nics: []\nallow: []", "malformed": "nics: [", "empty": "",
	} {
		for verb, end := range map[string]func(*bench, testnet.Call){
			"DEL":   func(b *bench, c testnet.Call) { b.node.MustRun(c.With("DEL")) },
			"GC":    func(b *bench, c testnet.Call) { b.node.MustRun(gcAll(c)) },
			"sweep": func(b *bench, c testnet.Call) { b.pod.Delete(); b.node.MustRun(c.With("GC")) },
		} {
			t.Run(name+", "+verb, func(t *testing.T) {
				b := newBench(t)
				before := b.node.State()
				call := b.call("ADD", b.macvlanConfig(nil))
				if verb != "sweep" { // a virtual NIC does not survive that
					call = b.call("ADD", b.config(nil))
				}
				b.node.MustRun(call)
				nodeFile(t, file)
				end(b, call)
				b.untouched(before)
			})
		}
	}
}

// gcAll returns GC with an empty list of valid attachments.
func gcAll(c testnet.Call) testnet.Call {
	c.Config = strings.TrimSuffix(c.Config, "}") + `,"cni.dev/valid-attachments":[]}`
	return c.With("GC")
}

// A state directory that the node file forbids may have been forged: DEL does
// not use its records.
func TestRecordsOfAClosedStateDirectoryAreNotBelieved(t *testing.T) {
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(nil)))
	dir, mark := spied(t)
	forge(t, b, func(r *ledger.Record) { r.IPAM = &ledger.IPAM{Type: "spy", Path: dir, Config: []byte("{}")} })
	nodeFile(t, "paths: []")
	if _, err := b.node.Run(b.call("DEL", b.config(nil))); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a program that the record names was run")
	}
	if l, err := link.ByName(b.pod.Netns, "net1"); err != nil || l.Alias != nicName {
		t.Errorf("a link that nothing but the record tells to be the host's: %+v, %v", l, err)
	}
}

// As on a node that had no node file before: the records of a state directory
// that is forbidden now are carried out when it is permitted again.
func TestRecordsOfAClosedStateDirectoryEndWhenItIsOpen(t *testing.T) {
	for name, config := range map[string]func(b *bench, more map[string]any) string{"host-device": (*bench).config, "macvlan": (*bench).macvlanConfig} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			before := b.node.State()
			call := b.call("ADD", config(b, map[string]any{"ipam": localIPAM("10.7.0.0/24")}))
			b.node.MustRun(call)
			nodeFile(t, "paths: []")
			b.node.MustRun(call.With("DEL"))
			if _, err := os.Stat(b.recordPath()); err != nil || len(b.held()) == 0 {
				t.Fatalf("the record is gone, or the address: %v, %v", err, b.held())
			}
			nodeFile(t, "nics: []")
			b.node.MustRun(gcAll(call))
			b.untouched(before)
		})
	}
}

// Without a node file only our own state directory is used: records name
// programs, which the author of a network would have run.
func TestRecordsOfAnAuthorAreNotBelievedWithoutANodeFile(t *testing.T) {
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.macvlanConfig(nil)))
	b.pod.Delete() // any ADD and GC ends the attachment now
	dir, mark := spied(t)
	forge(t, b, func(r *ledger.Record) { r.IPAM = &ledger.IPAM{Type: "spy", Path: dir, Config: []byte("{}")} })
	t.Setenv(nodefile.PathEnv, filepath.Join(t.TempDir(), "none.yaml"))
	b.pod = testnet.NewNetns(t, "pod")
	for verb, refused := range map[string]bool{"ADD": true, "STATUS": true, "GC": false, "CHECK": true, "DEL": false} {
		for _, id := range []string{"c1", "c2"} {
			call := b.call(verb, b.macvlanConfig(nil))
			call.ContainerID = id
			_, err := b.node.Run(call)
			switch asks := verb == "ADD" || verb == "STATUS"; {
			case asks:
				fails(t, err, 0, `"stateDir"`, `add the path to "paths" in `)
				if verb == "ADD" {
					fails(t, err, cnierr.InvalidConfig)
				}
			case refused != (err != nil):
				t.Errorf("%s: %v", verb, err)
			}
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a program that the record names was run")
	}
	if _, err := os.Stat(b.recordPath()); err != nil {
		t.Errorf("the record, which an administrator may believe, is gone: %v", err)
	}
}

// forge changes the record of the bench's attachment on disk.
func forge(t *testing.T, b *bench, change func(*ledger.Record)) {
	t.Helper()
	path := b.recordPath()
	r, err := ledger.Decode(readFile(t, path))
	if err != nil {
		t.Fatal(err)
	}
	change(r)
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// recordPath returns the file of the record of attachment c1/net1.
func (b *bench) recordPath() string { return filepath.Join(b.state, "attachments", "c1@net1.json") }
