package store

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/versions"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// TestJournalOfEachVersionIsRead reads entries of the journal as rail-agent does.
func TestJournalOfEachVersionIsRead(t *testing.T) {
	sample := &deferred{
		Kubeconfig: "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig", Server: "https://10.96.0.1:443", Namespace: "kube-system",
		Pool: ipam.Pool{Prefix: netip.MustParsePrefix("172.31.0.0/24")}, Note: &note{},
	}
	versions.Fill(t, sample)
	sample.Slices = "" // of another kind of entry
	versions.Kept(t, "journal.json", sample, func(data []byte) (any, error) {
		j := Journal{Path: t.TempDir()}
		if err := os.WriteFile(filepath.Join(j.Path, "entry"+journalSuffix), data, 0o600); err != nil {
			return nil, err
		}
		all, err := j.all()
		return all["entry"+journalSuffix], err
	})
	slices := *sample
	slices.Slices = "pool-172.31.0.0-16"
	versions.Kept(t, "journal-slice.json", &slices, func(data []byte) (any, error) {
		var d deferred
		err := json.Unmarshal(data, &d)
		return d, err
	})
}
