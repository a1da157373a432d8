package local

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/rail-cni/rail-cni/integration/versions"
)

// TestAddressesOfEachVersionAreRead reads the record of an address, and the file of its pool.
func TestAddressesOfEachVersionAreRead(t *testing.T) {
	sample := &record{Version: recordVersion, Address: "10.0.0.7/24"}
	versions.Fill(t, sample)
	versions.Kept(t, "address.json", sample, func(data []byte) (any, error) { return parseRecord(data, netip.MustParseAddr("10.0.0.7")) })
	pool := &poolInfo{Version: recordVersion, Range: "10.0.0.0/24"}
	versions.Fill(t, pool)
	versions.Kept(t, "pool.json", pool, func(data []byte) (any, error) {
		var p poolInfo
		err := json.Unmarshal(data, &p)
		return p, err
	})
	now := map[string]string{
		"10.0.0.7": recordName(netip.MustParseAddr("10.0.0.7")), "fd00::7": recordName(netip.MustParseAddr("fd00::7")),
		"10.0.0.0/24": poolDir(netip.MustParsePrefix("10.0.0.0/24")), "fd00::/64": poolDir(netip.MustParsePrefix("fd00::/64")),
	}
	versions.Kept(t, "address-file-names.json", now, func([]byte) (any, error) { return now, nil })
}
