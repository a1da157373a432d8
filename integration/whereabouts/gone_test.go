package whereabouts

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDelWithoutAWayToTheClusterIsDoneWhenThereIsOne removes the kubeconfig by
// which a pod got its address. Its DEL succeeds, with any config and pod name,
// and the address is freed when the kubeconfig is back.
func TestDelWithoutAWayToTheClusterIsDoneWhenThereIsOne(t *testing.T) {
	for name, tc := range map[string]struct {
		ipam   string
		noArgs bool
		sliced bool // so is the ADD, and the node has lost its notes
	}{
		"the same config":                              {ipam: `{"range":"10.0.0.0/24"}`},
		"no pod's name":                                {ipam: `{"range":"10.0.0.0/24"}`, noArgs: true},
		"node slices, which cannot be asked for":       {ipam: `{"range":"10.0.0.0/24","node_slice_size":"/26"}`, noArgs: true},
		"node slices, and the notes are lost":          {ipam: `{"range":"10.1.0.0/24","network_name":"rail1","node_slice_size":"/26"}`, sliced: true},
		"a config that cannot be read":                 {ipam: `{"range":"10.0.0.0/33"}`},
		"a config that leads to another namespace now": {ipam: `{"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"DIR/other"}}`},
		"a config with the local store":                {ipam: `{"range":"10.0.0.0/24","store":"local"}`},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := newNamespace(t)
			n := newNode(t, namespace)
			kubeconfig := filepath.Join(n.dir, "kubeconfig")
			other, err := os.ReadFile(filepath.Join(newNode(t, newNamespace(t)).dir, "kubeconfig"))
			if err != nil {
				t.Fatal(err)
			}
			n.write(t, "other", string(other))
			id, args := identity(1)
			add := call{binary: ours(t), verb: "ADD", id: id, ifname: "net1", args: args, stdin: n.config(t, "1.0.0", `{"range":"10.0.0.0/24"}`, "")}
			if tc.sliced {
				makeSlice(t, namespace, 1)
				add.stdin, add.node = n.config(t, "1.0.0", tc.ipam, ""), "node1"
			}
			if _, err := add.run(); err != nil {
				t.Fatal(err)
			}
			if tc.sliced {
				if err := os.RemoveAll(filepath.Join(n.dir, "state", "ipam-kubernetes")); err != nil {
					t.Fatal(err)
				}
			}
			del := add
			del.verb, del.stdin = "DEL", n.config(t, "1.0.0", tc.ipam, "")
			if tc.noArgs {
				del.args = ""
			}
			if err := os.Rename(kubeconfig, kubeconfig+".away"); err != nil {
				t.Fatal(err)
			}
			if _, err := del.run(); err != nil {
				t.Error(err)
			}
			if err := os.Rename(kubeconfig+".away", kubeconfig); err != nil {
				t.Fatal(err)
			}
			if entries, reserved := holders(t, namespace); len(entries) != 1 || len(reserved) != 1 {
				t.Errorf("entries %q, reservations %q", entries, reserved)
			}
			n.settleJournal(t)
			wantEmpty(t, namespace)
			if left, err := filepath.Glob(filepath.Join(n.dir, "state", "ipam-kubernetes", "*", "notes", "*.note")); len(left) > 0 || err != nil {
				t.Error(left, err)
			}
		})
	}
}
