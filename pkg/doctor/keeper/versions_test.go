package keeper

import (
	"encoding/json"
	"testing"

	"github.com/rail-cni/rail-cni/integration/versions"
)

// TestMemoryOfEachVersionIsRead reads the reported findings that earlier versions have written.
// They must not be reported again after an upgrade.
func TestMemoryOfEachVersionIsRead(t *testing.T) {
	sample := reportedRule{Scope: "node"}
	versions.Fill(t, &sample)
	versions.Kept(t, "doctor.json", memory{"NIC-MTU": sample}, func(data []byte) (any, error) {
		var m memory
		err := json.Unmarshal(data, &m)
		return m, err
	})
}
