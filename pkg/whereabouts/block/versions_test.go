package block

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/rail-cni/rail-cni/integration/versions"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// TestBlocksOfEachVersionAreRead reads the file of a node's blocks. The file is valid for
// one boot, and an upgrade happens within one boot.
func TestBlocksOfEachVersionAreRead(t *testing.T) {
	sample := &file{
		Pool: ipam.Pool{Prefix: netip.MustParsePrefix("10.0.0.0/16")}, Size: 64,
		Blocks: []entry{{Prefix: netip.MustParsePrefix("10.0.0.64/26"), Claim: "c", State: held}},
	}
	versions.Fill(t, sample)
	versions.Kept(t, "blocks.json", sample, func(data []byte) (any, error) {
		var f file
		err := json.Unmarshal(data, &f)
		return f, err
	})
}
