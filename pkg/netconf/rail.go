package netconf

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// railAuto is the value of "rail" that stands for the rail of the NIC that the pod was allocated.
const railAuto = "auto"

// Rail is the key "rail" of a network: the rail that the network's NIC must have. The zero value
// means that the key is missing or null, so that any NIC will do.
type Rail struct {
	Number *int // nil if any rail will do
	Auto   bool // the NIC must have a rail, but any rail will do
}

// IsZero reports whether the network does not specify the rail.
func (r Rail) IsZero() bool { return r.Number == nil && !r.Auto }

// UnmarshalJSON implements [json.Unmarshaler].
func (r *Rail) UnmarshalJSON(data []byte) error {
	*r = Rail{}
	if string(bytes.TrimSpace(data)) == "null" {
		return nil
	}
	var number int
	if json.Unmarshal(data, &number) == nil {
		r.Number = &number
		return nil
	}
	var word string
	if json.Unmarshal(data, &word) == nil && word == railAuto {
		r.Auto = true
		return nil
	}
	return failure.New(failure.Decode, `"rail" cannot be %.40s`, data).
		Cure(`write it as a whole number, or as "auto" for the rail of the NIC that was allocated to the pod`)
}

// check returns an error for a negative rail.
func (r Rail) check() error {
	if r.Number == nil || *r.Number >= 0 {
		return nil
	}
	return failure.New(failure.InvalidConfig, `"rail": %d is negative`, *r.Number).Cure("give the number of a rail in the node file, or leave the key out")
}

// needsRail reports whether an attachment needs the rail of its NIC. That is so if the network names a rail, or if
// the network's addresses or routing table depend on the rail.
func needsRail(rail Rail, c *Common, r *Routing) bool {
	return !rail.IsZero() || c.VariesByRail() || r.TableOfRail()
}

// railCure adds a cure to err, the error for a NIC without a rail, if nothing but the routing table needs the rail.
func railCure(err error, rail Rail, c *Common) error {
	if !rail.IsZero() || c.VariesByRail() {
		return err
	}
	return failure.WithCure(err, tableCure)
}

// PossibleRails returns the rails that an attachment of the network can have. all are the node's
// rails. If the key "rail" is a number, the result is only that rail. Otherwise it is all.
func (c *Common) PossibleRails(all []int) []int {
	var keys struct {
		Rail Rail `json:"rail"`
	}
	if err := json.Unmarshal(c.Raw, &keys); err != nil || keys.Rail.Number == nil {
		return all
	}
	if !slices.Contains(all, *keys.Rail.Number) {
		return nil
	}
	return []int{*keys.Rail.Number}
}
