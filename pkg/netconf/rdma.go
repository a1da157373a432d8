package netconf

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// The values of the key "rdma".
const (
	RDMAAuto     = "auto"     // the NIC's RDMA device, if there is one, moves as well
	RDMARequired = "required" // ADD fails without a working RDMA device
	RDMAOff      = "off"      // RDMA is left unchanged
)

// defaultGIDTimeout bounds ADD's wait for a GID. The kernel adds a GID some milliseconds after the
// address.
const defaultGIDTimeout = 2 * time.Second

// RDMA has the keys of host-device and macvlan that concern the NIC's RDMA device.
type RDMA struct {
	// RDMA is "auto" (also when empty), "required" or "off".
	RDMA string `json:"rdma"`
	// GIDTimeout bounds the wait for the GIDs of the interface's addresses, as a duration: "500ms",
	// "2s". If it is empty, the bound is 2 s.
	GIDTimeout string `json:"gidTimeout"`
}

// Wait returns GIDTimeout as a duration.
func (r *RDMA) Wait() time.Duration {
	if d, err := time.ParseDuration(r.GIDTimeout); err == nil {
		return d
	}
	return defaultGIDTimeout
}

// checkTOS returns an error if the type of service is not in the range 0 to 255.
func checkTOS(tos *int) error {
	if tos == nil || *tos >= 0 && *tos <= 255 {
		return nil
	}
	return failure.New(failure.InvalidConfig, `"roceTos": %d is not a type of service`, *tos).Cure("use 0 to 255: four times the DSCP, plus the ECN bits")
}

// complete applies the defaults and refuses unknown values.
func (r *RDMA) complete() error {
	switch r.RDMA {
	case "":
		r.RDMA = RDMAAuto
	case RDMAAuto, RDMARequired, RDMAOff:
	default:
		return failure.New(failure.InvalidConfig, `"rdma": %q is not a known value`, r.RDMA).Cure(`use "auto", "required" or "off"`)
	}
	return checkDuration("gidTimeout", r.GIDTimeout)
}
