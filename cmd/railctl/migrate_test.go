package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMigratePrintsTheResourcesOrTheMistake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "input")
	const shared = `{"configList": [{"resourceName": "a", "rdmaHcaMax": 8, "selectors": {"ifNames": ["ens11np0"]}}]}`
	const configMap = "kind: ConfigMap\nmetadata: {name: x}\ndata:\n  node-a: '" + shared + "'\n  node-b: '{\"configList\": {}}'\n"
	for _, c := range []struct {
		text, key string
		code      int
		want      string
	}{
		{shared, "", 0, "resources:\n  pools:\n    - name: rdma/a\n"},
		{configMap, "node-a", 0, "- name: rdma/a\n"},
		{configMap, "", 1, "--key"},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, errOut, code := plainRun("migrate", "devices", "-f", file, "--key", c.key)
		if code != c.code || (code != 0) != (out == "") || !strings.Contains(out+errOut, c.want) {
			t.Errorf("key %q: exit code %d, stdout:\n%s\nstderr:\n%s\nwithout %q", c.key, code, out, errOut, c.want)
		}
	}
}
