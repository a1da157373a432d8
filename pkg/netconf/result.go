package netconf

import (
	"encoding/json"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// WholeResult returns an error if a CNI result (JSON of any version) is null, or has null in a list
// in place of an interface, an address or a route: the CNI library would dereference a nil pointer.
func WholeResult(result []byte) error {
	var r *struct{ Interfaces, IPs, Routes []*json.RawMessage }
	if err := json.Unmarshal(result, &r); err != nil {
		return err
	}
	if r == nil || slices.Contains(slices.Concat(r.Interfaces, r.IPs, r.Routes), nil) {
		return failure.New(failure.Decode, "the result, or one of its interfaces, addresses or routes, is null").Cure("correct the plugin that made the result")
	}
	return nil
}
