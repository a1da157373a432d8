package all_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/integration/versions"
)

// ofTheNode are keys of a record whose values are those of the node and the moment, such as the
// index of a link. All others are the version's.
var ofTheNode = []string{
	"created", "updated", "taken", "made", "bootID", "inode", "cookie", "path", "config", "nic", "mac", "permMAC", "broadcast",
	"index", "podIndex", "masterIndex", "above", "lower", "raw", "text",
}

// transplant returns the record of another version, with the values of now for the keys of the
// node.
func transplant(then, now any) any {
	switch then := then.(type) {
	case map[string]any:
		now, _ := now.(map[string]any)
		for key, value := range then {
			if have, ok := now[key]; ok && slices.Contains(ofTheNode, key) {
				then[key] = have
			} else {
				then[key] = transplant(value, now[key])
			}
		}
	case []any:
		now, _ := now.([]any)
		for i := range min(len(then), len(now)) {
			then[i] = transplant(then[i], now[i])
		}
	}
	return then
}

// TestAttachmentOfEachVersionIsEnded ends attachments by the records that each version wrote of
// them by DEL: the NIC returns with all its settings, and the address is
// free.
func TestAttachmentOfEachVersionIsEnded(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(b *bench) string{
		"host-device": func(b *bench) string {
			return b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24"), "routing": map[string]any{"mode": "source", "table": 110}})
		},
		"macvlan": func(b *bench) string { return b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")}) },
	} {
		file := "live-" + name + ".json"
		for version, path := range versions.Files(t, file) {
			t.Run(name+" of "+version, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				b.furnish()
				before := b.node.State()
				config := of(b)
				b.node.MustRun(b.call("ADD", config))
				record := filepath.Join(b.state, "attachments", "c1@net1.json")
				versions.Freeze(t, path, json.RawMessage(readFile(t, record)))
				var then, now any
				for file, into := range map[string]*any{path: &then, record: &now} {
					if err := json.Unmarshal(readFile(t, file), into); err != nil {
						t.Fatal(err)
					}
				}
				text, err := json.Marshal(transplant(then, now))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(record, text, 0o600); err != nil {
					t.Fatal(err)
				}
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
				if b.pod.Has("net1") {
					t.Error("the pod has the interface still")
				}
			})
		}
	}
}
