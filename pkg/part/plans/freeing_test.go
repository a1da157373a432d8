package plans_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// Otherwise an IPAM plugin that fails for one pod would delay the ADDs of all
// other pods.
func TestAddDoesNotAskAFailedIPAMPluginAgainAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.NIC("ens13np0", b.wire)
	asked := filepath.Join(t.TempDir(), "asked")
	c := b.call("ADD", b.macvlanConfig(map[string]any{"ipam": map[string]any{"type": "spy"}}))
	c.Path = b.answering(`[ "$CNI_COMMAND" = ADD ] && echo '` + spyResult + `' && exit; echo >>` + asked +
		`; [ -e ` + asked + `.works ] && exit; echo '{"code":11,"msg":"no"}'; exit 1`)
	times := func() int { return strings.Count(string(readFile(t, asked)), "\n") }
	b.node.MustRun(c)
	_, err := b.node.Run(c.With("DEL"))
	fails(t, err, 0, "no")
	if r := b.records(); len(r) != 1 || r[0].Phase != ledger.Freeing || times() != 1 {
		t.Fatalf("records %+v, the IPAM plugin was asked %d times", r, times())
	}
	other := b.call("ADD", b.config(map[string]any{"device": "ens13np0"}))
	other.ContainerID, other.Netns, other.Path = "c2", "/run/netns/"+testnet.NewNetns(t, "pod2").Name, c.Path
	b.node.MustRun(other)
	b.node.MustRun(other.With("DEL"))
	if times() != 1 {
		t.Errorf("an ADD at once asked it again")
	}
	// Long after the failure the next ADD calls the plugin again, and the record goes.
	if err := os.WriteFile(asked+".works", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ago := time.Now().UTC().Add(-time.Hour).Format(time.RFC3339Nano)
	text := string(readFile(t, b.recordFile(t)))
	b.overwriteRecord(t, regexp.MustCompile(`"updated":"[^"]*"`).ReplaceAllString(text, `"updated":"`+ago+`"`))
	b.node.MustRun(other)
	if r := b.records(); times() != 2 || len(r) != 1 || r[0].ContainerID != "c2" {
		t.Errorf("an hour later it was asked %d times; records %+v", times(), r)
	}
	b.node.MustRun(other.With("DEL"))
}
