package plans_test

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
// them, by DEL and by GC: the NIC returns with all its settings, and the address is free.
func TestAttachmentOfEachVersionIsEnded(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(b *bench, more map[string]any) string{
		"host-device": func(b *bench, more map[string]any) string {
			more["routing"] = map[string]any{"mode": "source", "table": 110}
			return b.config(more)
		},
		"macvlan": (*bench).macvlanConfig,
	} {
		for version, path := range versions.Files(t, "live-"+name+".json") {
			for verb, keys := range map[string]map[string]any{"DEL": {}, "GC": {"cni.dev/valid-attachments": []any{}}} {
				t.Run(name+" of "+version+" by "+verb, func(t *testing.T) {
					t.Parallel()
					b := newBench(t)
					b.furnish()
					before := b.node.State()
					keys["ipam"] = localIPAM("172.31.1.0/24")
					config := of(b, keys)
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
					b.node.MustRun(b.call(verb, config))
					b.untouched(before)
					if b.pod.Has("net1") {
						t.Error("the pod still has the interface")
					}
				})
			}
		}
	}
}
